"""Static mechanisms for linear queries: one histogram in, answers to a whole class out."""

from streamveil.core.noise import Place
from streamveil.linear.additive import Additive, noisy_histogram, noisy_queries
from streamveil.linear.budget_shares import Meter, Share
from streamveil.linear.mwem import Mwem
from streamveil.linear.protocol import ErrorBound, QueryAnswers, StaticMechanism, combine
from streamveil.linear.queries import Matrix, Queries, functions
from streamveil.linear.strategies import Direct, Points, Residuals, Strategy
from streamveil.linear.structured import Marginals, Ranges
from streamveil.linear.sums import Sums, Through, best_strategy

__all__ = [
    "Additive", "Direct", "ErrorBound", "Marginals", "Matrix", "Meter", "Mwem", "Place",
    "Points", "Queries", "QueryAnswers", "Ranges", "Residuals", "Share", "StaticMechanism",
    "Strategy", "Sums", "Through", "best_strategy", "combine", "functions",
    "noisy_histogram", "noisy_queries",
]  # fmt: skip
