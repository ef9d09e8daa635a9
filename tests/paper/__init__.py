"""Every claim of the four papers, with the modules that implement it and the tests and benches that show it.

A claim is something that, according to a paper, its system does or achieves. A claim that nothing shows
yet has no evidence and is listed as open. `python -m tools.reference` writes the tables of
`docs/architecture.md` from these modules.
"""
