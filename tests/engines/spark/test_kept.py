"""A state of Spark of every format was kept, and goes on with the same releases."""

import json

import pytest

from streamveil.engines.spark import shards
from tests.states import kept

ARCHIVES = sorted(kept.HERE.glob("spark-*/*.tar.gz"))


def test_a_state_of_every_format_is_kept():
    assert {path.parent.name for path in ARCHIVES} == {
        f"spark-{n}" for n in range(1, shards.current() + 1)
    }


@pytest.mark.spark
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.parent.name)
def test_a_kept_state_goes_on(archive, session, tmp_path):
    kept.unpack(archive, tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert kept.on_spark(tmp_path, session, "s", kept.STEPS) == expected
