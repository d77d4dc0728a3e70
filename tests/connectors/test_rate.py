"""Made-up rows: the same at every reading, there once their time has come, refused when unclear."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.connectors import open_source
from streamveil.connectors.rate import LONGEST, SCHEMA, SECOND, RateSource
from streamveil.errors import SourceError

MADE = RateSource(rows=1000, start="2026-01-01", rows_per_second=7, units=40, keys=6)


def test_rows_do_not_depend_on_how_they_are_read():
    whole = MADE.table(0, MADE.rows)
    assert whole.schema.equals(SCHEMA)
    assert whole.equals(pa.concat_tables([MADE.table(0, 300), MADE.table(300, 700)]))
    chunks = list(MADE.read(None, 256, ["key", "ts"]))
    assert pa.concat_tables(c.rows for c in chunks).equals(whole.select(["key", "ts"]))
    rest = list(MADE.read(chunks[1].position, 1000))
    assert pa.concat_tables(c.rows for c in rest).equals(whole.slice(512))


def test_units_and_keys_are_all_used_and_times_follow_the_rate():
    whole = MADE.table(0, MADE.rows)
    assert np.bincount(whole["unit"].to_numpy()).tolist() != [25] * 40
    assert np.bincount(whole["unit"].to_numpy(), minlength=40).min() > 0
    assert np.bincount(whole["key"].to_numpy()).min() > 1000 / 6 - 5 * (1000 / 6) ** 0.5
    us = whole["ts"].cast(pa.int64()).to_numpy() - MADE.start_us
    assert us.tolist() == [i * SECOND // 7 for i in range(1000)]


def test_a_row_is_there_when_its_time_has_come():
    live = RateSource(rows=1000, start="2026-01-01", rows_per_second=7, follow=True)
    start = live.start_us / SECOND
    us = live.table(0, 1000)["ts"].cast(pa.int64()).to_numpy()
    for after in (-5.0, 0.0, 0.5, 1.0, 3.25, 1e6):
        assert live.present(start + after) == (us < live.start_us + after * SECOND).sum()
    assert MADE.present(0.0) == 1000


@pytest.mark.parametrize(
    "wrong", [{"rows": 0}, {"rows": LONGEST + 1}, {"keys": "6"}, {"start": "soon"}, {"speed": 3}]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(SourceError, match=next(iter(wrong))):
        open_source("rate", {"rows": 9, "start": "2026-01-01", **wrong})
