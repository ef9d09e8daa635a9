"""Benches: one module an area, run as `python -m bench.<area> [--quick] [--json]`.

A bench measures ratios, ours and a peer's interleaved in one run, and compares them with goals.
It never judges by a single run, never runs beside another bench, and reports a bad figure like a
good one. `bench.frame` is what they share; a bench itself is one function that yields results.
"""
