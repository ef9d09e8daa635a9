"""The test suite. It mirrors src/penstock; what mirrors nothing there is named in test_tidy.py."""
