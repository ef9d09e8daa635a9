"""Plugins of the suite, named in the `pytest_plugins` of tests/conftest.py."""
