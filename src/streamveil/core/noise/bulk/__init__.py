"""Rounded Gaussian noise inside compiled loops: a nanosecond a draw, at any position.

The noise of a sketch is derived per cell where it is pushed, millions of times a second. Samplers
of one call per release (`core.noise.samplers`) take seven times as long there. Both draw from the
AES-256 keystream of one address (`Draws`) and are exact: what float arithmetic cannot decide is
decided with more precision.
"""
