"""The promise: everything that decides a guarantee.

It imports nothing else of ours but errors, types, and two helpers: `compiled` (loops, and SciPy's
special functions) and `kept` (what a search has found).
"""
