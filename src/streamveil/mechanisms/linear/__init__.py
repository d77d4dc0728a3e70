"""Static mechanisms for linear queries: one histogram in, answers to a whole class out."""

from streamveil.mechanisms.linear.additive import Additive, noisy_histogram, noisy_queries
from streamveil.mechanisms.linear.mwem import Mwem
from streamveil.mechanisms.linear.pmw import Pmw, PmwRelease
from streamveil.mechanisms.linear.protocol import ErrorBound, QueryAnswers, StaticMechanism, combine
from streamveil.mechanisms.linear.queries import Matrix, Queries, functions
from streamveil.mechanisms.linear.smalldb import SmallDb
from streamveil.mechanisms.linear.strategies import (
    Dense,
    Direct,
    Points,
    Residuals,
    Strategy,
    hierarchy,
)
from streamveil.mechanisms.linear.structured import Halfspaces, Marginals, Ranges
from streamveil.mechanisms.linear.sums import Sums
from streamveil.mechanisms.linear.through import Through, best_strategy
from streamveil.mechanisms.shares import Meter, Share
from streamveil.privacy.noise import Place

__all__ = [
    "Additive",
    "Dense",
    "Direct",
    "ErrorBound",
    "Halfspaces",
    "Marginals",
    "Matrix",
    "Meter",
    "Mwem",
    "Place",
    "Pmw",
    "PmwRelease",
    "Points",
    "Queries",
    "QueryAnswers",
    "Ranges",
    "Residuals",
    "Share",
    "SmallDb",
    "StaticMechanism",
    "Strategy",
    "Sums",
    "Through",
    "best_strategy",
    "combine",
    "functions",
    "hierarchy",
    "noisy_histogram",
    "noisy_queries",
]
