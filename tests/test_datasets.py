"""The synthetic workload has the published shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.clicks import Clicks


def test_the_published_totals() -> None:
    users, keys = Clicks(users=200_000, keys=1_000_000).arrays()
    per_user = np.bincount(users)
    assert per_user.mean() == pytest.approx(5.905, rel=0.01)  # 59,052,062 records of 10M users
    assert np.percentile(per_user, 99) == pytest.approx(32, abs=1)
    assert (per_user > 10).mean() == pytest.approx(0.150, abs=0.003)
    top = np.bincount(keys).max() / len(keys)
    assert top == pytest.approx(25_497 / 59_052_062, rel=0.15)


def test_clumpy_repeats_keys_of_the_same_user() -> None:
    users, keys = Clicks(users=20_000, clumpy=0.5).arrays()
    repeats = 1 - len(np.unique(np.stack([users, keys]), axis=1).T) / len(users)
    assert 0.38 < repeats < 0.45  # half of the records that are not a user's first
    users, keys = Clicks(users=20_000).arrays()
    assert 1 - len(np.unique(np.stack([users, keys]), axis=1).T) / len(users) < 0.005


@pytest.mark.parametrize("ids", ["int", "text"])
def test_writing_in_row_groups(tmp_path: Path, ids: str) -> None:
    clicks = Clicks(users=500, keys=50)
    rows = clicks.write(tmp_path / "x.parquet", ids, group_rows=1000)
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert file.metadata.num_row_groups == -(-rows // 1000)
    assert file.read().equals(clicks.table(ids))
    assert np.all(np.diff(file.read()["ts"].cast("int64").to_numpy()) >= 0)
