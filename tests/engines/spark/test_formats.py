"""Files of shards of earlier formats are read, and agree with what a replay makes."""

import numpy as np
import pytest

from streamveil.engines.spark import shards
from streamveil.engines.spark.shards import BASE, DELTA, Shards
from streamveil.errors import StoreError

ROWS = {"a": np.arange(1000, 2000), "b": np.arange(9.0)}


def turned(content):
    """A made-up format, in which integers are kept with their bits turned."""
    facts, arrays = content
    more = {name: ~one if one.dtype == np.int64 else one for name, one in arrays.items()}
    return {**facts, "new": True}, more


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("kind", [BASE, DELTA])
def test_a_file_of_an_earlier_format_is_read_and_agrees_with_what_a_replay_makes(
    kind, tmp_path, monkeypatch
):
    place = Shards(str(tmp_path), "one")
    before = place.put("unit", 0, 1, kind, ({"n": 3}, ROWS))
    monkeypatch.setattr(shards, "UPGRADES", (turned,))
    facts, arrays = turned(({"n": 3}, ROWS))
    found = place.get("unit", 0, 1, kind)
    assert found.facts == facts
    assert same(found.arrays, arrays)
    assert found.tag == before.tag, "histories go on from what is there"
    assert place.put("unit", 0, 1, kind, (facts, arrays)).tag == before.tag
    with pytest.raises(StoreError, match="already run over other rows"):
        place.put("unit", 0, 1, kind, (facts, arrays | {"b": np.zeros(9)}))
    assert place.put("unit", 0, 2, kind, (facts, arrays)).tag != before.tag
    monkeypatch.undo()
    with pytest.raises(StoreError, match="reads up to 1"):
        place.get("unit", 0, 2, kind)
