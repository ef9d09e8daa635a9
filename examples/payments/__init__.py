"""A bank that never loses a cent: payments between accounts over partitioned logs.

One command starts it: `python -m examples.payments up`. See docs/olep.md.
"""
