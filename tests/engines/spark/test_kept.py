"""A kept state of Spark goes on with the same releases; a shard of another format is refused."""

import json

import numpy as np
import pytest

from streamveil.engines.spark import shards
from streamveil.engines.spark.shards import BASE, Shards
from streamveil.errors import StoreError
from tests.states import kept


def test_a_shard_of_another_format_is_refused(tmp_path, monkeypatch):
    place = Shards(str(tmp_path), "one")
    place.put("unit", 0, 1, BASE, ({"n": 3}, {"a": np.arange(3)}))
    monkeypatch.setattr(shards, "FORMAT", 2)
    with pytest.raises(StoreError, match="format version 1; this streamveil reads version 2"):
        place.get("unit", 0, 1, BASE)


@pytest.mark.spark
def test_a_kept_state_goes_on(session, tmp_path):
    kept.unpack(kept.HERE / f"spark-{shards.FORMAT}" / "group-by.tar.gz", tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert kept.on_spark(tmp_path, session, "s", kept.STEPS) == expected
