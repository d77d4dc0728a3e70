"""A classifier that keeps improving as records arrive, with a guarantee for ever."""

from __future__ import annotations

import numpy as np

from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Noise, Place
from streamveil.dynamic.erm import Trainer, trainer, unit_rows
from streamveil.dynamic.schedulers import Reruns, RunSchedule
from streamveil.errors import PlanError, require_positive
from streamveil.linear.budget_shares import Share
from streamveil.types import Array, Float64

Data = tuple[Array, Array]


class GrowingClassifier:
    """A linear two-class model, retrained by a public schedule; scikit-learn's method names.

    Protects: streams of records that differ in one replaced record; sizes are public.
    Guarantee: that of the schedule, over everything ever predicted.
    Proof: labels and rows are read by the black box only, whose runs the schedule pays for;
        predictions are post-processing of its coefficients.

    The number of features and both labels are declared: taking them from data would leak them.
    Every model draws at addresses of its own; seeded ones (tests) need a `name` of their own for
    that. With `intercept`, a constant is fitted beside the features.

    Raises:
        ValueError: a setting is out of its range, or rows and labels do not fit the model.
        PlanError: `fit` on a model that already has records.

    >>> from streamveil.dynamic.schedulers import DisjointDoubling
    >>> from streamveil.core.accounting import Budget
    >>> from streamveil.core.noise import SeededNoise
    >>> plan = DisjointDoubling(start=500, budget=Budget(rho=1))
    >>> model = GrowingClassifier(features=2, classes=(0, 1), schedule=plan, noise=SeededNoise(1))
    >>> x = np.random.default_rng(1).normal(size=(2000, 2))
    >>> for part in np.split(x, 20):
    ...     _ = model.partial_fit(part, part[:, 0] > 0)
    >>> bool(model.score(x, x[:, 0] > 0) > 0.9), model.trained_on
    (True, 2000)
    """

    def __init__(  # noqa: PLR0913 (its settings, as scikit-learn has them)
        self, *, features: int, classes: tuple[object, object], schedule: RunSchedule, noise: Noise,
        method: str | Trainer = "gradient", intercept: bool = True,
        name: str = "growing-classifier",
    ) -> None:  # fmt: skip
        require_positive(features=features)
        if len(classes) != 2 or classes[0] == classes[1]:
            raise ValueError("classes must be two different labels")
        self.features, self.classes_, self.intercept = features, np.array(classes), intercept
        self.trainer = trainer(method) if isinstance(method, str) else method
        width = features + intercept
        self._parts: list[Data] = [(np.zeros((0, width)), np.zeros(0))]
        place = Place.opened(noise, name)
        self._reruns: Reruns[Data] = Reruns(schedule, self._train, self._slice, place)

    @property
    def guarantee(self) -> Guarantee:
        """For everything ever predicted."""
        return self._reruns.guarantee

    @property
    def trained_on(self) -> int:
        """Records there were when the current model was trained (public); 0 before the first."""
        return self._reruns.answered_at

    @property
    def coef_(self) -> Float64[Array, " d"]:
        """The current private coefficients; zeros before the first run."""
        answer = self._reruns.answer
        return np.zeros(self._parts[0][0].shape[1]) if answer is None else answer

    def partial_fit(self, x: Array, y: Array) -> GrowingClassifier:
        """Adds records; retrains when the schedule says so. Other labels count as no record."""
        x, y = np.asarray(x, np.float64), np.asarray(y)
        if x.ndim != 2 or x.shape[1] != self.features or len(x) != len(y):
            raise ValueError(
                f"x must be (records, {self.features}), y a label each; not {x.shape} and {y.shape}"
            )
        sign = (y == self.classes_[1]).astype(float) - (y == self.classes_[0])
        rows = unit_rows(x, intercept=self.intercept) * (sign != 0)[:, None]
        self._parts.append((rows, sign))
        self._reruns.arrive(len(x))
        return self

    def fit(self, x: Array, y: Array) -> GrowingClassifier:
        """The first records. A model that has records refuses: its budget is already promised."""
        if self._reruns.size:
            raise PlanError(
                "this model already has records; fit would forget them but not what they cost.\n"
                "  to fix  use partial_fit, or a new model with a budget of its own"
            )
        return self.partial_fit(x, y)

    def decision_function(self, x: Array) -> Float64[Array, " n"]:
        """Scores; positive means the second class."""
        scores: Float64[Array, " n"] = unit_rows(x, intercept=self.intercept) @ self.coef_
        return scores

    def predict(self, x: Array) -> Array:
        """The likelier class of every row."""
        labels: Array = self.classes_[(self.decision_function(x) > 0).astype(int)]
        return labels

    def score(self, x: Array, y: Array) -> float:
        """Share of rows whose class is predicted right."""
        return float(np.mean(self.predict(x) == np.asarray(y)))

    def _slice(self, start: int, stop: int) -> Data:
        rows, labels = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        self._parts = [(rows, labels)]
        return rows[start:stop], labels[start:stop]

    def _train(self, data: Data, share: Share, place: Place) -> Array:
        return self.trainer.train(*data, share, place)
