"""Expressions over columns: names, types, functions, kernels."""
