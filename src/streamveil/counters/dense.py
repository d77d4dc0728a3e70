"""The best factorization there is, for horizons small enough to store it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from streamveil.core.counters import correlated_noise
from streamveil.core.counters.protocol import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    checked_times,
    next_step,
)
from streamveil.core.counters.schedule import check_horizon
from streamveil.core.noise.keyed import Draws
from streamveil.counters.toeplitz import WholeHistory, remembering_step, weighted_history
from streamveil.errors import require_positive
from streamveil.types import Array, Exact, Float64, Int64

LARGEST_HORIZON = 512
ROUNDS = 400
GAP = 1e-6  # relative, between the factorization found and what no other can beat
STEP = 2.0  # exponent of the reweighting; 1 converges too, slower


@dataclass(frozen=True)
class Factorization:
    """A = B C with its certificate: no factorization has a maximal error below `bound`."""

    decoder: Float64[Array, "T T"]  # lower triangular, for columns of C of norm at most 1
    error: float  # largest row norm of the decoder
    bound: float


@dataclass(frozen=True, kw_only=True)
class DenseCounter(WholeHistory):
    """Running totals with the least maximal error that any factorization has.

    Algorithm: alternating reweighting (see `best_factorization`), made lower triangular and run in
        feedback form.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = (moved * sensitivity + slack) / sigma.
    Proof: see `feedback`; the encoder is the inverse of the differences of the decoder's rows. The
        norms of its columns are computed with a bound on the error of the inversion.
    Error: within 10^-6 of the optimum; `certificate` is the lower bound, by duality.
    Memory: 8 (horizon + 1) bytes per key.
    Numerics: as `BltCounter`, with the amplification of this encoder.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = DenseCounter(horizon=16, sigma=100)
    >>> round(counter.certificate, 4)
    1.7045
    """

    horizon: int  # steps the guarantee covers, >= 1
    sigma: Exact | float  # scale of one noise draw, quanta, > 0

    def __post_init__(self) -> None:
        if check_horizon(self.horizon) > LARGEST_HORIZON:
            raise ValueError(f"horizon must be at most {LARGEST_HORIZON}; use BltCounter beyond")
        require_positive(sigma=self.sigma)

    @property
    def certificate(self) -> float:
        """What the maximal error of every factorization is at least, per unit of noise."""
        return best_factorization(self.horizon).bound

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        return _prepared(self.horizon)[1]

    def _encoding(self) -> tuple[float, float]:
        """See `WholeHistory`."""
        differences, _, amplification = _prepared(self.horizon)
        return amplification, float(np.diag(differences).min())

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        times = checked_times(t, self.horizon)
        decoder = best_factorization(self.horizon).decoder
        gaussian = (decoder**2).sum(axis=1)
        rounding = ((decoder / np.diag(decoder)) ** 2).sum(axis=1)
        variance = gaussian * float(self.sigma) ** 2 + rounding / 12
        return np.asarray(np.sqrt(variance[times - 1]))

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`."""
        t, differences = next_step(self.horizon, state), _prepared(self.horizon)[0]
        scale = float(differences[t - 1, t - 1])
        offset = weighted_history(differences[t - 1, : t - 1], state.real)
        return remembering_step(state, increments, (offset, scale, self.sigma), draws, ids)


@lru_cache(maxsize=16)
def best_factorization(horizon: int, rounds: int = ROUNDS) -> Factorization:
    """The factorization of least maximal error, with a certificate; both hold after any round.

    Algorithm: for weights p on rows and q on columns let M = D_p^(1/2) A D_q^(1/2) = U S V'. Then
        B = D_p^(-1/2) U S^(1/2) and C = S^(1/2) V' D_q^(-1/2) factor A, with squared row norms
        diag(U S U')/p and column norms diag(V S V')/q; weights move towards the largest of them.
    Proof of the certificate: for any A = B C and any weights, the nuclear norm of M is at most
        |D_p^(1/2) B|_F |C D_q^(1/2)|_F <= max row norm of B * max column norm of C.
    """
    A = np.tril(np.ones((horizon, horizon)))
    p = q = np.full(horizon, 1 / horizon)
    error, bound, best = np.inf, 0.0, A
    for _ in range(rounds):
        left, values, right = np.linalg.svd(np.sqrt(p)[:, None] * A * np.sqrt(q))
        rows, columns = (left**2) @ values, (right.T**2) @ values
        row, col = float((rows / p).max()), float((columns / q).max())
        bound = max(bound, float(values.sum()) * (1 - 1e-10))  # rounding of the decomposition
        if (row * col) ** 0.5 < error:
            error = (row * col) ** 0.5
            best = (left * np.sqrt(values * col)) / np.sqrt(p)[:, None]
        if error <= bound * (1 + GAP):
            break
        p, q = p * (rows / p) ** STEP, q * (columns / q) ** STEP
        p, q = p / p.sum(), q / q.sum()
    triangular = np.linalg.qr(best.T)[1].T
    triangular = triangular * np.sign(np.diag(triangular))
    return Factorization(np.tril(triangular), error, bound)


@lru_cache(maxsize=16)
def _prepared(horizon: int) -> tuple[Float64[Array, "T T"], float, float]:
    """(differences of the decoder's rows, sensitivity, amplification).

    Proof: the encoder that runs is exactly the inverse of the float64 matrix E of differences. Let
        X be its computed inverse and R = I - E X, |R| <= |computed R| + (T+2) u |E||X| entrywise.
        The inverse is X (I - R)^-1, so its columns are at most |X| |R| / (1 - |R|) longer, in
        Frobenius norms. A rounding error g_t of z_t (relative to its scale) moves z by the inverse
        times diag(E) g, and offsets sum terms of total weight at most W: the amplification is the
        largest row sum of that product times max(1, W).
    """
    decoder = best_factorization(horizon).decoder
    differences = np.diff(decoder, axis=0, prepend=0.0)
    scales = np.diag(differences)
    inverse = np.linalg.inv(differences)
    residual = np.abs(np.eye(horizon) - differences @ inverse)
    residual += (horizon + 2) * correlated_noise.U * (np.abs(differences) @ np.abs(inverse))
    left = float(np.linalg.norm(residual)) * correlated_noise.EASE
    longer = float(np.linalg.norm(inverse)) * left / (1 - left)
    norm = float(np.linalg.norm(inverse, axis=0).max()) * (1 + 1e-12) + longer
    spread = float((np.abs(inverse) * scales).sum(axis=1).max()) + longer * horizon
    weight = float(((np.abs(differences).sum(axis=1) - scales) / scales).max())
    return (
        differences,
        norm * correlated_noise.UP,
        spread * max(1.0, weight) * correlated_noise.EASE,
    )
