"""The promise: everything that decides a guarantee.

It imports nothing else of ours but errors, types, and three helpers: `compiled` (loops, and SciPy's
special functions), `kept` (what a search has found) and `minimum` (the search).
"""
