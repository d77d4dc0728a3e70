"""What leaves a job does not tell how its rows lay; and planted faults that would."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.dataflow import group_by, published_keys, release_tables, rows
from streamveil.dataflow.published_keys import KeyCache
from tests.audit.any_order import differences, drawn
from tests.audit.raw_rows import HOUR
from tests.planting import instead

SEED = 20261126
DRAWN = (0, 7, 8, 9, 12, 17)


@pytest.mark.parametrize("nth", DRAWN)
def test_no_byte_tells_how_the_rows_lay(nth):
    assert drawn(SEED, nth) == []


JOB = {
    "text": "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 80, delta = 1e-5, look_share = 0,"
    " privacy_unit_column = user, max_rows_contributed = 6, intervals = 'true',"
    " start = '1970-01-01', end = '1970-01-01 04:00:00') page,"
    " SUM(ms, contribution_bounds_per_row => (0, 1), quantum => 0.001) AS total FROM clicks"
    " GROUP BY page EMIT EVERY INTERVAL 1 HOUR",
    "stream": "clicks", "event_time": "ts",
}  # fmt: skip


def many(rng):
    """Rows of people with more than their bounds let pass, in groups of all sizes."""
    count = 4000
    return pa.table({
        "user": [f"u{one}" for one in rng.integers(0, 600, count)],
        "page": [f"p{one}" for one in rng.integers(0, 90, count)],
        "ms": rng.random(count),
        "ts": pa.array(rng.integers(0, 4 * HOUR, count), pa.timestamp("us", "UTC")),
    })  # fmt: skip


def as_they_came(honest):
    """Sizes of groups in the order in which the groups first came."""

    def cut_of(shape, moments, parts, sizes, rows):
        came = np.argsort(np.concatenate([part.keys.order for part in parts]), kind="stable")
        return honest(shape, moments, parts, sizes[came], rows)

    return cut_of


def unsorted(honest):
    return lambda encoded: (np.arange(len(encoded)), honest(encoded)[1])


def by_place(honest):
    """Groups are named, and so have noise, by their places."""

    def names_of(self, table, rows):
        return np.repeat(rows.astype(np.uint64)[:, None], 2, axis=1)

    return names_of


def of_few(honest):
    return lambda units, key, into=None: honest(units, key) % np.uint64(200) + np.uint64(1)


def anew(honest):
    """Units are forgotten after each micro-batch."""

    def bound(self, state, period, rows):
        state.units.pop(period, None)
        return honest(self, state, period, rows)

    return bound


FAULTS = {
    "sizes of groups are added up as they came": instead(release_tables, "cut_of", as_they_came),
    "groups stand as they came": instead(published_keys, "sorted_keys", unsorted),
    "noise follows the place of a group": instead(KeyCache, "names_of", by_place),
    "several units share one bound": instead(rows, "fingerprints", of_few),
    "units are bounded anew in each micro-batch": instead(group_by.GroupBy, "bound", anew),
}


def test_the_job_of_the_faults_tells_nothing():
    rng = np.random.default_rng(1)
    assert differences(JOB, many(rng), rng, times=2) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_that_tell_of_the_order_are_seen(fault, monkeypatch):
    FAULTS[fault](monkeypatch)
    rng = np.random.default_rng(2)
    assert differences(JOB, many(rng), rng, times=2)
