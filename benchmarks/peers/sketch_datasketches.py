"""How often each of some keys occurs, by Count-Min of DataSketches in 24 KB: not private."""

import pyarrow.parquet as pq
from asking import run_weekly
from datasketches import count_min_sketch


def ask(path, _epsilon, _delta, _groups, _rows, names):
    """The lines between the marks are what a user writes."""
    # begin
    keys = pq.read_table(path)["key"].to_pylist()
    sketch = count_min_sketch(3, 1000)
    for key in keys:
        sketch.update(key)
    estimates = [sketch.get_estimate(name) for name in names]
    # end
    return [dict(zip(names, estimates, strict=True))]


run_weekly(ask)
