"""Exact samplers: integers whose law is the stated one, from the words of a noise source.

Each is a pure function of its draws: the same address gives the same noise. `rounded_*` add noise
to a centre; `inverse.discrete_laplace` draws from a fixed law, `choice.exponential_choice` picks an
index. `docs/noise.md` compares them and states what is proved.

The `*_word` kernels draw once and can be called from other numba kernels; when one answers "not
sure" its outcome must be replaced by `settle`'s.
"""

from streamveil.core.noise.samplers.quantiles import gaussian_table, laplace_table
from streamveil.core.noise.samplers.rounded import (
    Asked,
    rounded_gaussian,
    rounded_gaussian_word,
    rounded_laplace,
    rounded_word,
    settle,
)

__all__ = [
    "Asked",
    "gaussian_table",
    "laplace_table",
    "rounded_gaussian",
    "rounded_gaussian_word",
    "rounded_laplace",
    "rounded_word",
    "settle",
]
