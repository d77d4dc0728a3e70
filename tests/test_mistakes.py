"""What newcomers type wrong: each mistake is answered in words, at once, with the way out."""

import datetime
import inspect
import re
import traceback
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamveil as sv
import streamveil.compiler.group_by
from tests.work import at_most

ROWS = pa.table({
    "ts": pa.array([1_767_225_600_000_000], pa.timestamp("us", "UTC")), "u": [1], "url": ["a"],
    "ms": [1],
})  # fmt: skip
BUDGET = {"epsilon": 1, "delta": 1e-6}
FOLDER = "job.veil"
CALLS = 100_000  # of our functions, before a mistake is answered
WAYS = (  # words that say what to do
    r"to fix|did you mean|known: |such as|must be|must read|"
    r"takes|needs|between|is a |write|add |leave it out|name|give "
)
stream = sv.memory(ROWS, event_time="ts")


def q(**said):
    """A query by time with some of its settings changed, or (...) left out."""
    settings = {"every": "6 hours", "start": "2026-01-01", "end": "2026-01-02",
                "budget": sv.Budget(**BUDGET), **said}  # fmt: skip
    made = stream.protect("u").group_by("url")
    made = made.agg(n=sv.count(), s=sv.sum("ms", bounds=(0, 9))).bound(max_rows=3)
    return made.release(**{name: value for name, value in settings.items() if value is not ...})


def done(made):
    """The one-shot count of a stream."""
    if not made.measures:
        made = made.agg(n=sv.count())
    return made.bound(max_rows=1).release(budget=sv.Budget(**BUDGET))


def tabled(values):
    """A changing table whose column has public values."""
    made = sv.table(stream, domains={"u": values}).agg(n=sv.count())
    return made.release(expected_size=100, budget=sv.Budget(**BUDGET))


PER_DAY = ", privacy_unit_period = INTERVAL 1 DAY, start = '2026-01-01', end = '2026-01-02'"


def own(subquery, unit="u", emit="", more=""):
    """A count of what a subquery makes of each unit's rows."""
    return sv.sql(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, "
        f"privacy_unit_column = {unit}, max_rows_contributed = 1{more}) COUNT(*) AS n "
        f"FROM (SELECT {subquery}) {emit}",
        {"t": stream},
    )


def unbounded(measure):
    """A query of which nobody chooses the bounds of values."""
    made = stream.protect("u").agg(x=measure).bound(max_rows=1)
    return made.release(budget=sv.Budget(**BUDGET), look_share=0)


MISTAKES = [
    ("'budget'", lambda: q(budget=...)),
    ("no argument by place", lambda: sv.Budget(1, 1e-6)),
    ("budget must be a Budget", lambda: q(budget={"epsilon": 1})),
    ("no argument 'eps'", lambda: sv.Budget(eps=1)),
    ("delta = 0.5", lambda: q(budget=sv.Budget(epsilon=1, delta=0.5))),
    ("epsilon must be above 0", lambda: sv.Budget(epsilon=0, delta=1e-6)),
    ("epsilon must be above 0", lambda: sv.Budget(epsilon=-1, delta=1e-6)),
    ("epsilon must be a finite number", lambda: sv.Budget(epsilon="one", delta=1e-6)),
    ("epsilon must be a finite number", lambda: sv.Budget(epsilon=float("nan"))),
    ("epsilon must be a number", lambda: sv.Budget(epsilon=[1])),
    ("needs a delta", lambda: q(budget=sv.Budget(epsilon=1)).explain()),
    ("no contribution bounds", lambda: unbounded(sv.sum("ms"))),
    ("no argument by place", lambda: stream.protect("u").agg(sv.count())),
    ("'n' must be an aggregate", lambda: stream.protect("u").agg(n=sv.count)),
    ("'n' must be an aggregate", lambda: stream.protect("u").agg(n="count")),
    (
        "nothing is aggregated",
        lambda: stream.protect("u").agg().bound(max_rows=1).release(budget=sv.Budget(**BUDGET)),
    ),
    ("must be SQL text", lambda: stream.agg(n=sv.count(5))),
    ("pair", lambda: stream.agg(n=sv.sum("ms", bounds=5))),
    (
        "lower one first",
        lambda: (
            stream.protect("u")
            .agg(n=sv.sum("ms", bounds=(9, 0)))
            .bound(max_rows=1)
            .release(budget=sv.Budget(**BUDGET))
        ),
    ),
    ("must be a number", lambda: stream.agg(n=sv.sum("ms", bounds=("a", "b")))),
    ("1.8e308", lambda: stream.agg(n=sv.sum("ms", bounds=(0, Fraction(10**400))))),
    (
        "two finite numbers",
        lambda: done(stream.protect("u").agg(x=sv.sum("ms", bounds=(0, Decimal("nan"))))),
    ),
    (  # its noise had a variance of 0 in floating point, and an interval of one point
        "at least 1e-140 apart",
        lambda: done(stream.protect("u").agg(x=sv.sum("ms", bounds=(0, 1e-155)))),
    ),
    (
        "at least 1e-70 apart",
        lambda: done(stream.protect("u").agg(x=sv.variance("ms", bounds=(0, 1e-80)))),
    ),
    (  # 64-bit integers there are rounded to multiples of 1,024, which no interval holds
        "at least 6.71089e+07 apart at this size, not 2048",
        lambda: done(
            stream.protect("u").agg(x=sv.stddev("ms", bounds=(2**63 - 4096, 2**63 - 2048)))
        ),
    ),
    (
        "quantum of 'x' must be at most 1e+140",
        lambda: done(stream.protect("u").agg(x=sv.sum("ms", bounds=(0, 1), quantum=1e160))),
    ),
    (
        "has a delta, such as",
        lambda: stream.protect("u").agg(x=sv.sum("ms")).release(budget=sv.Budget(epsilon=1)),
    ),
    (
        "its column 'ms' has values of several types",
        lambda: sv.memory({"u": [1, 2], "ms": [1, "x"]}),
    ),
    ("1.8e308", lambda: stream.agg(n=sv.sum("ms", bounds=(0, 10**400)))),
    ("1.8e308", lambda: stream.agg(n=sv.sum("ms", bounds=(0, 1), quantum=10**400))),
    (
        "finite",
        lambda: (
            stream.protect("u")
            .agg(n=sv.sum("ms", bounds=(0, float("nan"))))
            .bound(max_rows=1)
            .release(budget=sv.Budget(**BUDGET))
        ),
    ),
    (
        "max_rows_contributed",
        lambda: (
            stream.protect("u").agg(n=sv.count()).bound("3").release(budget=sv.Budget(**BUDGET))
        ),
    ),
    ("no argument 'rows'", lambda: stream.bound(rows=3)),
    (
        "max_rows_contributed",
        lambda: (
            stream.protect("u")
            .agg(n=sv.count())
            .bound(max_rows=0)
            .release(budget=sv.Budget(**BUDGET))
        ),
    ),
    (
        "max_rows_contributed",
        lambda: (
            stream.protect("u")
            .agg(n=sv.count())
            .bound(max_rows=1.5)
            .release(budget=sv.Budget(**BUDGET))
        ),
    ),
    ("end (2025-01-01) must be later than start", lambda: q(end="2025-01-01")),
    ("must be later", lambda: q(end="2026-01-01")),
    ("378,691,200 releases", lambda: q(every="1 second", end="2038-01-01").explain()),
    ("steps must be", lambda: q(every="1 us").explain()),
    ("longer than zero", lambda: q(every="0 min")),
    ("every must read", lambda: q(every="-5 min")),
    ("every must be", lambda: q(every=60)),
    ("longer than zero", lambda: q(every="")),
    ("'hour'", lambda: q(every="6 hurs")),
    ("start must be a time", lambda: q(start="Jan 1")),
    ("start must be a time", lambda: q(start=datetime.date(2026, 1, 1))),
    ("public start and end", lambda: q(start=..., end=...)),
    ("public start and end", lambda: q(end=...)),
    ("steps is a whole number", lambda: q(end=..., steps="4")),
    ("steps must be", lambda: q(end=..., steps=0)),
    ("steps must be", lambda: q(end=..., steps=10**12).explain()),
    ("steps must be", lambda: q(end=..., steps=-3)),
    ("steps is a whole number", lambda: q(end=..., steps=2.5)),
    ("steps is a whole number", lambda: q(end=..., steps=True)),
    ("did you mean 'steps'", lambda: q(stop=1)),
    ("confidence", lambda: q(confidence=95)),
    ("confidence", lambda: q(confidence="high")),
    ("unknown counter", lambda: q(counter="tre").explain()),
    ("known: anytime-blt, auto, blt, honaker", lambda: q(counter="binary-tree").explain()),
    ("counter must be", lambda: q(counter=3).explain()),
    ("unknown preset", lambda: q(preset="x")),
    ("'event'", lambda: q(clock="evnt")),
    ("clock must be", lambda: q(clock=1)),
    ("name must be", lambda: q(name=5)),
    ("arrival must be", lambda: q(arrival=3)),
    ("lateness must read", lambda: q(lateness="x")),
    ("'table'", lambda: q(selection="tble").explain()),
    ("integer must be True or False", lambda: q(integer="yes")),
    ("weights must be", lambda: q(weights=3).explain()),
    ("'adaptive' or 'flat'", lambda: q(weights="flta")),
    ("'noise' or 'true'", lambda: q(intervals="yes")),
    ("max_units must be", lambda: q(max_units="a").explain()),
    ("expected_rows must be", lambda: q(expected_rows="many").explain()),
    ("SQL text", lambda: done(stream.protect(5))),
    ("who is protected", lambda: done(stream)),
    ("needs 'unit'", lambda: stream.protect()),
    ("no argument 'user'", lambda: stream.protect(user="u")),
    ("did you mean 'avg'?", lambda: sv.mean("ms")),
    ("did you mean 'stddev'?", lambda: sv.std("ms")),
    ("did you mean 'where'?", lambda: stream.filter("ms > 1")),
    ("did you mean 'group_by'?", lambda: stream.protect("u").groupby("url")),
    ("unknown column 'user'", lambda: done(stream.protect("user")).run(FOLDER)),
    ("per must be", lambda: stream.protect("u", per=1)),
    ("SQL text", lambda: done(stream.where(1).protect("u"))),
    ("not valid SQL", lambda: done(stream.where("ms > 1 && url").protect("u"))),
    ("tumble", lambda: stream.window("1 day")),
    ("size must be", lambda: sv.tumble(5)),
    ("needs 'size'", lambda: sv.tumble()),
    ("needs 'slide'", lambda: sv.hop("1 day")),
    (
        "at most the size",
        lambda: (
            stream.protect("u")
            .window(sv.hop("1 hour", "1 day"))
            .agg(n=sv.count())
            .bound(max_rows=1)
            .release(
                every="1 hour", start="2026-01-01", end="2026-01-02", budget=sv.Budget(**BUDGET)
            )
        ),
    ),
    ("column must be named", lambda: stream.group_by(5)),
    ("column must be named", lambda: stream.group_by(["url"])),
    ("SQL text", lambda: done(stream.protect("u").group_by(hour=5))),
    ("keys must be discover", lambda: stream.group_by("url", keys=["a"])),
    ("public takes", lambda: sv.public(5)),
    ("public takes", lambda: sv.public(None)),
    (".parquet or .csv", lambda: done(stream.protect("u").group_by("url", keys=sv.public("a")))),
    ("dict", lambda: done(stream.protect("u").group_by("url", keys=sv.public([{"url": "a"}])))),
    (
        "public groups of 'url'",
        lambda: done(stream.protect("u").group_by("url", keys=sv.public([1, 2]))).run(FOLDER),
    ),
    (
        "min_privacy_units_per_group",
        lambda: done(stream.protect("u").group_by("url", keys=sv.discover("20"))),
    ),
    (
        "min_privacy_units_per_group",
        lambda: done(stream.protect("u").group_by("url", keys=sv.discover(0))),
    ),
    ("n must be a whole number", lambda: sv.rows(0)),
    (
        "between 0 and 1",
        lambda: (
            stream.protect("u")
            .agg(n=sv.quantile("ms", 5, bounds=(0, 1)))
            .bound(max_rows=1)
            .release(budget=sv.Budget(**BUDGET))
        ),
    ),
    ("q must be between 0 and 1", lambda: sv.quantile("ms", "median", bounds=(0, 1))),
    ("needs 'q'", lambda: sv.quantile("ms", bounds=(0, 1))),
    ("no contribution bounds", lambda: unbounded(sv.median("ms"))),
    ("no contribution bounds", lambda: unbounded(sv.avg("ms"))),
    ("k must be", lambda: sv.heavy_hitters("url", k=0)),
    ("k must be", lambda: sv.heavy_hitters("url", k="5")),
    ("did you mean 'memory'", lambda: sv.heavy_hitters("url", mem=5)),
    ("count_if takes", lambda: stream.agg(n=sv.count_if(5))),
    ("not valid SQL", lambda: stream.agg(n=sv.count_if("ms >"))),
    ("count_if takes", lambda: sv.count_if(" ")),  # counted rows for which nothing holds
    ("population must be", lambda: sv.variance("ms", population="no")),
    ("population must be", lambda: sv.stddev("ms", population=2)),
    ("forecast must be", lambda: q().explain(forecast="no")),
    ("rows must be", lambda: q().limit("5")),
    ("rows must be", lambda: q().limit("1 OFFSET 1 --")),
    ("offset must be", lambda: q().limit(1, True)),
    ("condition must be text", lambda: q().having(True)),
    ("key must be text", lambda: q().order_by(True)),
    ("k must be text", lambda: q().select("url", k=1)),
    ("public takes", lambda: sv.public(pd.DataFrame({"url": ["a"]}))),  # its columns' names
    ("public takes", lambda: sv.public(np.array(3))),
    ("a public group is a value", lambda: sv.public([Decimal("sNaN")])),
    ("must be named by a text", lambda: stream.protect("u").per_unit(5, n="COUNT(*)")),
    ("protect was called before", lambda: stream.protect("u").protect("url")),
    ("join takes rows", lambda: stream.protect("u").join(stream.agg(n=sv.count()), on="u")),
    ("join takes rows", lambda: stream.protect("u").join(stream.group_by("url"), on="u")),
    ("on must be columns", lambda: stream.protect("u").join(stream, on=None)),
    ("must be named by a text", lambda: stream.protect("u").join(stream, on=[5])),
    ("how must be", lambda: stream.protect("u").join(stream, on="u", how=np.array(["a", "b"]))),
    ("sets must be", lambda: stream.group_by("url", sets=np.array(3))),
    ("a set must be", lambda: stream.group_by("url", sets=[5])),
    ("a set must be", lambda: sv.table(stream, domains={"u": [1, 2]}).marginals(5)),
    ("steps is a whole number", lambda: q(steps=np.array([1, 2]))),
    ("start must be a time", lambda: q(start=pd.NaT)),
    ("origin must be a time", lambda: sv.tumble("1 day", origin=pd.NaT)),
    ("no Unicode", lambda: done(stream.protect("u").agg(**{"\ud800": sv.count()}))),
    ("id must be text", lambda: sv.table(stream, id=np.array([1, 2]), domains={"u": [1, 2]})),
    ("must be texts, numbers", lambda: tabled([["a"]])),
    ("must be INT64", lambda: tabled([10**30])),
    ("question must be text", lambda: q().ask(5, FOLDER)),
    ("state must be the path", lambda: q().ask("COUNT(*)", None)),
    ("no option 'secrt'", lambda: q().ask("COUNT(*)", FOLDER, secrt="x")),
    ("insecure must be", lambda: q().ask("COUNT(*)", FOLDER, insecure="no")),  # it was yes
    ("session must be", lambda: sv.spark("local[2]")),
    ("publish must be", lambda: sv.spark(publish=5)),
    ("key must be values by name", lambda: sv.read(FOLDER, key="a")),
    ("in one list", lambda: tabled(np.array(3))),
    ("expected_rows must be", lambda: q(expected_rows=10**400).explain()),
    ("at most 255 bytes", lambda: q(look_share=0).run(FOLDER, rejects="\ud800")),
    ("the path of a directory", lambda: done(stream.protect("u").to("files", path=b"x")).explain()),
    ("no argument 'windw'", lambda: sv.read(FOLDER, windw=1)),
    ("at most 255 bytes", lambda: sv.read("x" * 300)),
    ("at most 255 bytes", lambda: sv.answers("\ud800")),
    ("at most 255 bytes", lambda: q().run("\ud800")),
    ("at most 255 bytes", lambda: q().run(FOLDER, rejects="x" * 300)),
    ("SQL text", lambda: sv.sql(5)),
    ("empty", lambda: sv.sql("")),
    ("tables maps", lambda: sv.sql("SELECT 1", [ROWS])),
    ("not 5", lambda: sv.sql("SELECT 1", {"a": 5})),
    ("a list", lambda: done(sv.memory([1, 2]).protect("u")).run(FOLDER)),
    ("not None", lambda: done(sv.memory(None).protect("u")).run(FOLDER)),
    ("one length", lambda: sv.memory({"a": [1, 2], "b": [1]})),
    ("one type", lambda: sv.memory({"a": [1, "x"]})),
    ("lists", lambda: sv.memory({"a": 1})),
    ("needs 'path'", lambda: sv.files()),
    ("files takes a path", lambda: sv.files(5)),
    ("files takes a path", lambda: done(sv.files([]).protect("u")).run(FOLDER)),
    ("no file matches", lambda: done(sv.files("nope.parquet").protect("u")).run(FOLDER)),
    ("no option 'sep'", lambda: done(sv.files("x.csv", sep=";").protect("u")).run(FOLDER)),
    ("event_time must be the name", lambda: done(sv.files("x.csv", event_time=5).protect("u"))),
    (
        "source 'kafka' needs 'servers', 'columns'",
        lambda: done(sv.source("kafka", name="x", topic="t").protect("u")).run(FOLDER),
    ),
    ("unknown sink 'fils'", lambda: done(stream.to("fils", path="out").protect("u")).explain()),
    ("did you mean 'path'", lambda: done(stream.to("files", pth="out").protect("u")).run(FOLDER)),
    (
        "yours another name",
        lambda: (
            stream.protect("u")
            .agg(trigger=sv.count())
            .bound(max_rows=1)
            .release(budget=sv.Budget(**BUDGET))
        ),
    ),
    ("needs 'state'", lambda: q().run()),
    ("must be the path", lambda: q().run(state=5)),
    ("streamveil.spark", lambda: q().run(FOLDER, engine="flink")),
    ("no option 'limit'", lambda: q().run(FOLDER, limit=3)),
    ("'passwd' is a file", lambda: q().run(state="passwd")),
    ("no folder", lambda: sv.answers("/nope")),
    ("answers takes", lambda: sv.answers(5)),
    ("no folder", lambda: sv.read("/nope")),
    ("horizon must be", lambda: sv.counters.choose(horizon=0, budget=sv.Budget(**BUDGET))),
    ("horizon must be", lambda: sv.counters.choose(horizon=1.5, budget=sv.Budget(**BUDGET))),
    ("needs 'budget'", lambda: sv.counters.choose(horizon=10)),
    ("budget must be a Budget", lambda: sv.counters.choose(horizon=10, budget=1)),
    ("horizon must be between 1", lambda: sv.counters.choose(10**50, sv.Budget(rho=1))),
    (
        "budget must be a Budget",
        lambda: sv.counters.fit(sv.counters.KaryTreeCounter(horizon=4, sigma=1), 1),
    ),
    ("horizon must be", lambda: sv.counters.BltCounter(horizon="9", sigma=1)),
    ("size must be between 0", lambda: sv.linear.combine([], -1)),
    ("answers takes", lambda: sv.answers(["x"])),
    ("source must be", lambda: sv.read(4)),
    ("PARTITION BY without", lambda: own("*, RANK() OVER (ORDER BY ms) AS k FROM t")),
    ("GROUP BY without", lambda: own("url, MIN(ts) AS first FROM t GROUP BY url")),
    ("DISTINCT without", lambda: own("DISTINCT url FROM t")),
    ("made of several rows", lambda: own("ANY_VALUE(u) AS u, url FROM t GROUP BY url")),
    ("nor in a total", lambda: own("u, ms FROM t GROUP BY u")),
    (
        "has a frame",
        lambda: own("*, SUM(ms) OVER (PARTITION BY u ORDER BY ts ROWS 3 PRECEDING) AS s FROM t"),
    ),
    ("running totals are", lambda: own("*, MAX(ms) OVER (PARTITION BY u ORDER BY ts) AS s FROM t")),
    (
        "takes no bounds",
        lambda: own("u, SUM(ms, contribution_bounds_per_row => (0, 1)) AS s FROM t GROUP BY u"),
    ),
    ("not a window function", lambda: own("*, NTILE(4) OVER (PARTITION BY u) AS s FROM t")),
    ("SELECT * with GROUP BY", lambda: own("* FROM t GROUP BY u")),
    (
        "computed from combined rows",
        lambda: own("u, MIN(ts) AS first FROM t GROUP BY u", "LOWER(u)"),
    ),
    (
        "here more may come",
        lambda: own(
            "u, MIN(ts) AS ts FROM t GROUP BY u", emit="EMIT EVERY 5 ROWS", more=", steps = 3"
        ),
    ),
    (
        "several periods",
        lambda: own(
            "u, MIN(ts) AS ts FROM t GROUP BY u", more=PER_DAY, emit="EMIT EVERY INTERVAL 1 DAY"
        ),
    ),
    (
        "one may become several",
        lambda: own(
            "u FROM t, UNNEST(SPLIT(url)) AS part", more=", steps = 3", emit="EMIT EVERY 5 ROWS"
        ),
    ),
    (
        "ends a query (line 1, column",
        lambda: own("* FROM t", emit="EMIT EVERY 5 ROWS FOR 3 STEPS", more=", steps = 3"),
    ),
    ("where it is a name, write `when`", lambda: own("* FROM t WHERE when > 2")),
    ("empty text", lambda: own("u FROM t, UNNEST(SPLIT(url, '')) AS part")),
    ("takes SPLIT(...)", lambda: own("u FROM t, UNNEST([1, 2]) AS part")),
    ("without OFFSET", lambda: own("u FROM t, UNNEST(SPLIT(url)) AS part WITH OFFSET")),
    ("no lists", lambda: own("u FROM t, UNNEST(ms) AS part").run(FOLDER)),
    (
        "groups of one set",
        lambda: done(
            stream.protect("u").group_by("url", keys=sv.public(["a"]), sets=[["url"], []])
        ),
    ),
    ("sets names 'ulr'", lambda: stream.protect("u").group_by("url", sets=[["ulr"]])),
    ("needs a frame", lambda: q().select("url", m="AVG(n) OVER (ORDER BY url)")),
    ("columns of their groups", lambda: q().select("url", m="LAG(n) OVER (ORDER BY n)")),
    ("OVER sees one release", lambda: q().select("url", m="LAG(n) OVER (ORDER BY trigger)")),
    ("not supported over released", lambda: q().select("url", m="NTILE(4) OVER (ORDER BY url)")),
    (
        "CSV is text without that",
        lambda: done(stream.protect("u").where("DATE(url) > '2026-01-01'")).run(state=FOLDER),
    ),
    ("and in QUALIFY", lambda: q().having("LAG(n) OVER (ORDER BY url) > 1")),
    (
        "a join before",
        lambda: sv.sql(
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, "
            "delta = 1e-6, privacy_unit_column = u) COUNT(*) AS n FROM t JOIN s ON t.url = s.url",
            {"t": stream, "s": ROWS},
        ),
    ),
    ("needs two names", lambda: own("t.u FROM t JOIN t ON t.u = t.u")),
    ("of which table", lambda: own("t.u FROM t JOIN t AS s ON u = s.u")),
    ("RIGHT JOIN is not supported", lambda: own("t.u FROM t RIGHT JOIN t AS s ON t.u = s.u")),
    (
        "stand alone in WHERE",
        lambda: own("t.u FROM t WHERE ms > 1 OR t.u IN (SELECT u FROM t)"),
    ),
    ("of one person", lambda: own("u FROM t WHERE EXISTS (SELECT 1 FROM t AS s WHERE s.ms > 1)")),
    ("must be of one column", lambda: own("u FROM t WHERE u IN (SELECT u, ms FROM t)")),
    ("join takes a stream", lambda: stream.protect("u").join(ROWS, on="u")),
    (
        "a unit of time such as MONTH",
        lambda: list(own("u FROM t WHERE DATE_TRUNC('month', ts) > ts").run(FOLDER)),
    ),
    ("is not GoogleSQL", lambda: own("u, COUNT(*) FILTER (WHERE ms > 0) AS n FROM t GROUP BY u")),
    ("cannot combine", lambda: own("u, STRING_AGG(url) AS urls FROM t GROUP BY u")),
    ("not a window that", lambda: own("u, LAG(ms) OVER w AS before FROM t")),
    ("other way round", lambda: own("t.u FROM t RIGHT JOIN t AS o ON t.u = o.u")),
    ("queries such as", lambda: sv.linear.best_strategy(3, "zcdp")),
    ("needs 'queries', 'kind'", lambda: sv.linear.best_strategy()),
    ("a schedule such as", lambda: sv.dynamic.Reruns(3, len, len, None)),
    ("a share such as", lambda: sv.dynamic.growing(3, 4)),
    ("whose open()", lambda: sv.sketches.LiveSketch(3, 4, 5)),
    ("protect(...) first", lambda: stream.join(stream, on="u")),
    ("how must be", lambda: stream.protect("u").join(stream, on="u", how="outer")),
    ("a join before", lambda: stream.protect("u").join(stream, on="url")),
    (
        "in both tables",
        lambda: done(stream.protect("u").join(stream, on="u").group_by("url")).answer(),
    ),
    (
        "GROUP BY a noisy number",
        lambda: sv.sql("SELECT n, COUNT(*) AS k FROM a GROUP BY n", {"a": q()}),
    ),
    ("added up by SUM", lambda: sv.sql("SELECT MAX(n) AS n FROM a", {"a": q()})),
    ("neither in GROUP BY", lambda: sv.sql("SELECT url, SUM(n) AS n FROM a", {"a": q()})),
    ("nothing reads, and it is charged", lambda: sv.sql("SELECT n FROM a", {"a": q(), "b": q()})),
    ("another value in every run", lambda: own("u FROM t WHERE DATE(ts) < CURRENT_DATE()")),
    ("what_if takes a query", lambda: sv.what_if("SELECT 1")),
    ("units must be", lambda: sv.what_if(q(), units=0)),
    ("fraction must be", lambda: sv.what_if(q(), fraction=2)),
    ("units must be a whole number of people, from 1", lambda: sv.what_if(q(), units=10**30)),
    ("epsilons must be a finite number above 0, not 0", lambda: sv.what_if(q(), epsilons=[0])),
    ("max_rows takes a list of numbers", lambda: sv.what_if(q(), max_rows=[None])),
    ("max_rows takes a list", lambda: sv.what_if(q(), max_rows=10**30)),
    (
        "ways must be a whole number from 1 to 1",
        lambda: sv.table(sv.memory(ROWS), domains={"u": [1]}).marginals(ways=10**30),
    ),
    (
        "index must be between 0 and 62",
        lambda: sv.dynamic.DisjointDoubling(start=9, budget=sv.Budget(epsilon=1)).run(10**30),
    ),
    ("not 2.5", lambda: q(max_units=2.5)),
    ("not 'soon'", lambda: q(start="soon")),
    ("not 3", lambda: q(every=3)),
    ("not 0", lambda: sv.rows(0)),
    ("not 2", lambda: sv.quantile("ms", 2, bounds=(0, 9))),
    ("not 0.9", lambda: q(look_share=0.9).explain()),
    ("not -1", lambda: sv.counters.choose(horizon=-1, budget=sv.Budget(**BUDGET))),
    ("list of dicts, not object", lambda: sv.memory(object())),
    ("domains maps columns to", lambda: sv.table(sv.memory(ROWS), domains=["u"])),
    ("in a list, not 'Lima'", lambda: sv.table(sv.memory(ROWS), domains={"url": "Lima"})),
    ("in a list, not 3", lambda: sv.table(sv.memory(ROWS), domains={"u": 3})),
    ("public values", lambda: sv.table(sv.memory(ROWS), domains={"u": range(10**18)})),
    ("epsilon", lambda: sv.what_if(q(), epsilon=3)),
    ("protect(...) first", lambda: stream.per_unit(first="MIN(ts)")),
    ("must be one function", lambda: stream.protect("u").per_unit(s="SUM(ms) / COUNT(*)")),
    ("call it twice", lambda: stream.protect("u").per_unit("url", k="RANK() OVER (ORDER BY ts)")),
    ("did you mean 'tumble'", lambda: sv.tumbel("1 day")),
    (
        "follow = TRUE (files) waits for rows",
        lambda: (
            sv.files("*.csv", event_time="ts", follow=True)
            .protect("u")
            .agg(n=sv.count())
            .bound(max_rows=1)
            .release(
                every="1 hour",
                start="2026-01-01",
                end="2026-01-02",
                clock="event",
                budget=sv.Budget(epsilon=1, delta=1e-6),
            )
        ),
    ),
]


@pytest.mark.parametrize(("cause", "mistake"), MISTAKES, ids=[one[0] for one in MISTAKES])
def test_a_mistake_is_answered_in_words_with_the_way_out(cause, mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "passwd").touch()
    errors = (sv.StreamveilError, AttributeError)  # the latter of a name that there is not
    with at_most(CALLS), pytest.raises(errors) as caught:
        mistake()
    message = str(caught.value)
    assert cause in message
    assert re.search(WAYS, message), message
    assert "streamveil" in str(caught.traceback[-1].path), "raised by another package"
    assert not (tmp_path / FOLDER / "ledger").exists(), "something was charged"


def public_calls():
    """Each function and class of queries, but for errors."""
    for name in sv.__all__:
        call = getattr(sv, name)
        if not (isinstance(call, type) and issubclass(call, BaseException)):
            yield pytest.param(call, id=name)


@pytest.mark.parametrize("call", list(public_calls()))
@pytest.mark.parametrize(
    "wrong", [object(), None, [], float("nan")], ids=lambda one: str(type(one))
)
def test_no_public_name_answers_wrong_kinds_with_an_error_of_python(call, wrong):
    needed = [
        one for one in inspect.signature(call).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]  # fmt: skip
    placed = [wrong for one in needed if one.kind is one.POSITIONAL_ONLY]
    try:
        call(*placed, **{one.name: wrong for one in needed if one.kind is not one.POSITIONAL_ONLY})
    except (sv.StreamveilError, TypeError) as error:  # `Release` takes only `Noisy`
        caught = traceback.extract_tb(error.__traceback__)
    else:
        return  # what a stream or a table of nothing is wrong with shows when it is read
    assert "streamveil" in caught[-1].filename
    assert caught[-1].line.startswith("raise "), "raised on purpose"


ANSWERS = {  # a call of each question that is right
    "difference": {"name": "n"}, "last": {"name": "n", "triggers": 1},
    "moving": {"name": "n", "windows": 1}, "ratio": {"top": "s", "bottom": "n"},
    "top": {"name": "n", "k": 1}, "plot": {"name": "n"},
}  # fmt: skip


@pytest.fixture(scope="module")
def answers():
    made = stream.protect("u").group_by("url", keys=sv.public(["a", "b"]))
    made = made.agg(n=sv.count(), s=sv.sum("ms", bounds=(0, 9))).bound(max_rows=1)
    return made.release(budget=sv.Budget(**BUDGET)).answer()


@pytest.mark.parametrize("wrong", [
    pytest.param(object(), id="object"), [], -1, 10**30, 1.5, float("nan"), "x y", np.array([1, 2]),
    None,
])  # fmt: skip
@pytest.mark.parametrize("question", ANSWERS)
def test_no_question_answers_wrong_arguments_with_an_error_of_python(answers, question, wrong):
    """A mean of 10^30 windows was computed for ever, and one of [] raised an error of Python."""
    call = getattr(answers, question)
    for name in inspect.signature(call).parameters:
        with suppress(sv.StreamveilError):
            call(**{**ANSWERS[question], name: wrong})


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_names_an_argument_that_it_has_not(answers, question):
    with pytest.raises(sv.PlanError, match=r"no argument 'windw'(.|\n)*to fix"):
        getattr(answers, question)(**ANSWERS[question], windw=1)


def test_a_ratio_is_not_called_like_a_group(answers):
    """Two columns had one name, and no frame of Polars could hold them."""
    for name in ("url", "\ud800"):
        with pytest.raises(sv.PlanError, match="name must"):
            answers.ratio("s", "n", name=name)


def test_releases_of_two_jobs_are_not_mixed():
    """Those of one took the place of the other's, and differences were taken between them."""
    made = stream.protect("u").agg(n=sv.count()).bound(max_rows=1)
    one, other = (
        made.release(budget=sv.Budget(**BUDGET), name=name).answer().releases.noisy((0, 1))
        for name in ("a", "b")
    )
    mixed = [sv.Release(one, 0, 1, 1), sv.Release(other, 0, 2, 2)]
    assert len(sv.answers(mixed[:1]).moments) == 1
    with pytest.raises(sv.PlanError, match="of one job"):
        sv.answers(mixed)


def test_a_bound_may_be_any_number_that_a_budget_may():
    made = stream.protect("u").agg(s=sv.sum("ms", bounds=(Decimal("0.5"), Fraction(3, 2))))
    made = made.bound(max_rows=1).release(budget=sv.Budget(**BUDGET), confidence=Decimal("0.9"))
    (asked,) = made.plan.aggregates
    assert (asked.low, asked.high, made.plan.options["confidence"]) == (0.5, 1.5, 0.9)
