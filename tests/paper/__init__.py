"""Each claim of the papers, and the tests and bench lines that show it here."""
