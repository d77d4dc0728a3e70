"""Losses that only tests charge as one."""

from streamveil.core.accounting import exact
from streamveil.core.accounting.guarantee import Loss, Pure


def approx(epsilon, delta):
    """That of a mechanism of which nothing but (epsilon, delta) is known."""
    return Pure(epsilon) + Loss(delta=exact("delta", delta))
