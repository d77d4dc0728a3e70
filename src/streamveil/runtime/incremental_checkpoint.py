"""A checkpoint in portions: what is copied at once, and what after later micro-batches.

An operator may name portions of its state that can be saved at a later micro-batch than the rest
(`Operator.portions`). They are copied one after the other, so that no micro-batch waits for a copy
of everything and the copies pass through little memory. Each is due at its share of the time that
a checkpoint may take; when that is over, what is left is copied even if the disk must be waited
for, so that a restart never repeats more than the policy says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamveil.dataflow.protocol import Arrays, Operator
from streamveil.runtime.checkpoint import CheckpointDraft
from streamveil.runtime.copy_buffer import CopyBuffer

SPREAD = 0.5  # of the patience with a log: what a checkpoint may take until its last portion
Portion = Callable[[], Arrays]  # as it is when it is asked for


class IncrementalCheckpoint:
    """A checkpoint under way."""

    def __init__(
        self, draft: CheckpointDraft, operator: Operator, state: Any, copies: CopyBuffer
    ) -> None:
        self.draft, self._copies = draft, copies
        now, self._left = portions(operator, state)
        self._all = len(self._left)
        self.draft.add(now, copies)

    def go_on(self, used_up: float) -> bool:
        """Copies what is due when so much of the patience is gone since it began. Is it whole?"""
        share = used_up / SPREAD
        while self._left and (share >= 1 or self._all - len(self._left) < share * self._all):
            arrays = self._left[0]()
            if share < 1 and not self._copies.has_room(sum(one.nbytes for one in arrays.values())):
                return False
            self.draft.add(arrays, self._copies)
            del self._left[0]
        return not self._left


def portions(operator: Operator, state: Any) -> tuple[Arrays, list[Portion]]:
    """What must be saved at once, and what may be later: nothing, if the operator does not say."""
    named = getattr(operator, "portions", None)
    return named(state) if named is not None else (operator.save(state), [])
