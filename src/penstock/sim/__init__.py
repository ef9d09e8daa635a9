"""The platform's decisions at the size of a fleet, from a seed, without a cluster.

Simulations call the very functions that the services call (`penstock.balance`, `penstock.quota`) on
made-up populations, and say what came of it. They do not predict milliseconds: what they assume
stands in each module's docstring, and every figure is a comparison of policies on one and the same
population. The same seed gives the same figures, on any machine.
"""
