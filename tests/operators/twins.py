"""Plain readings of the compiled stages: slow, short, and the oracle of the fast ones."""

import numpy as np


def bound(rows, bounds):
    """What `unit_stage` must answer, from dictionaries."""
    total, spent, slots, weights = {}, {}, {}, {}
    limit = None if bounds.quadratic is None else bounds.quadratic * bounds.scale**2
    accepted, first = [], []
    for unit, group, weight, hidden in zip(*(np.asarray(x).tolist() for x in rows), strict=True):
        old = weights.get((unit, group), 0)
        charge = (old + weight) ** 2 - old**2
        new = (unit, group) not in weights
        fits = (
            (bounds.max_rows is None or total.get(unit, 0) < bounds.max_rows)
            and (bounds.per_group is None or old + weight <= bounds.per_group * bounds.scale)
            and (limit is None or spent.get(unit, 0) + charge <= limit)
            and (bounds.slots is None or not (new and hidden) or slots.get(unit, 0) < bounds.slots)
        )
        accepted.append(fits)
        first.append(fits and new)
        if fits:
            total[unit] = total.get(unit, 0) + 1
            spent[unit] = spent.get(unit, 0) + charge
            slots[unit] = slots.get(unit, 0) + (new and hidden)
            weights[unit, group] = old + weight
    return np.array(accepted, bool), np.array(first, bool)
