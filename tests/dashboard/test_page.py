"""The page shows what was released and spent, escapes it, and needs nothing from outside."""

import builtins
import json
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.connectors.sinks import FilesSink
from streamveil.core.noise import SeededNoise
from streamveil.dashboard import page, view, write
from streamveil.errors import MissingExtraError, PlanError
from streamveil.release_metadata import TIME, ReleaseTime, kept_time
from streamveil.results import charts, draw
from streamveil.results.answers import Answers
from streamveil.results.releases import of_releases
from tests.released import made
from tests.results.streams import released

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
HOSTILE = "<script>alert('$x$')</script>"


class Tags(HTMLParser):
    """Collects tags and texts, and checks that they nest."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(path):
    tags = Tags()
    tags.feed(path.read_text())
    assert tags.open == []
    return tags


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """A finished job with a key that looks like markup, and a mean that not all keys have."""
    n = 3000
    table = pa.table({
        "user": np.arange(n) % 900,
        "page": [HOSTILE if i % 3 else f"page {i % 5}" for i in range(n)],
        "ms": np.linspace(0, 9, n), "ts": pa.array(np.arange(n) * 1_000_000, pa.timestamp("us")),
    })  # fmt: skip
    query = (
        sv.memory(table, event_time="ts", name="clicks").protect("user", per="1 hour")
        .window(sv.tumble("20 minutes")).group_by("page")
        .agg(n=sv.count(), ms=sv.sum("ms", bounds=(0, 9))).bound(max_rows=4)
        .release(every="5 minutes", start="1970-01-01", steps=8,
                 budget=sv.Budget(epsilon=20, delta=1e-3), name="a & b")
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("job") / "s"
    assert list(query.run(state=str(folder), noise=SeededNoise(1), insecure=True))
    return folder


def test_a_state_directory_becomes_one_page(state, tmp_path):
    tags = parsed(write(state, tmp_path / "d.html"))
    names = [tag for tag, _ in tags.seen]
    panels = [attrs for _, attrs in tags.seen if attrs.get("data-draw") == "panel"]
    assert {attrs["data-chart"] for attrs in panels} == {"0", "1", "2"}  # n, ms, the cut share
    assert names.count("h1") == 1
    assert names.count("script") == 1 + len(page.SCRIPTS), "a key became markup"
    outside = [v for _, attrs in tags.seen for k, v in attrs.items()
               if k in ("src", "href") and v and not v.startswith("#")]  # fmt: skip
    assert outside == []
    text = "".join(tags.text)
    for part in ("a & b", "Ledger", "What changed", "budget spent", "certain", HOSTILE,
                 "rows of one unit beyond max_rows = 4"):  # fmt: skip
        assert part in text
    again = write(state, tmp_path / "e.html").read_bytes()
    assert again == (tmp_path / "d.html").read_bytes(), "the page depends on something else"


def test_a_page_says_what_its_intervals_are_of(tmp_path):
    rows = pa.table({"u": [row // 9 for row in range(1800)], "c": ["a", "b"] * 900})
    grouped = sv.memory(rows).protect("u").group_by("c", keys=sv.public(["a", "b"]))
    for kind, shaded in (("noise", "of the noise are"), ("true", "and of rows over the bound are")):
        query = grouped.agg(n=sv.count()).bound(max_rows=3).release(
            budget=sv.Budget(epsilon=4, delta=1e-6), intervals=kind)  # fmt: skip
        state = tmp_path / kind
        assert list(query.run(str(state), noise=SeededNoise(1), insecure=True))
        text = " ".join("".join(parsed(write(state, tmp_path / "d.html")).text).split())
        assert shaded in text
        found = sv.answers(str(state))
        bars = view.page_of(found, {})[0]["largest"]["rows"]
        drawn = [(bar["lo"], bar["hi"]) for bar in bars]
        ranked = found.top("n", 25).table
        assert drawn == list(
            zip(*(ranked[end].to_pylist() for end in ("n_low", "n_high")), strict=True)
        )
        assert "Bars are intervals that cover the noise alone; all hold at once." in text
        assert ("can lie outside" in text) is (kind == "true")


def test_a_page_of_several_answers_has_the_ledger_of_each(tmp_path):
    rows = pa.table({"u": [row // 3 for row in range(1200)], "c": ["a", "b"] * 600})
    private = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {}, delta = 1e-6,"
        " privacy_unit_column = u) c, COUNT(*) AS n FROM t GROUP BY c"
    )
    query = sv.sql(f"SELECT c, b.n / a.n AS share FROM ({private.format(4)}) AS a"
                   f" JOIN ({private.format(2)}) AS b USING (c)", {"t": rows})  # fmt: skip
    state = tmp_path / "s"
    assert list(query.run(str(state), noise=SeededNoise(1), insecure=True))
    text = " ".join("".join(parsed(write(state, tmp_path / "d.html", query=query)).text).split())
    for part in ("Ledger of a", "Ledger of b", "budget spent by a", "epsilon = 6, delta = 2e-06",
                 "the sum of 2 ledgers"):  # fmt: skip
        assert part in text


def test_numbers_of_the_page_are_the_released_ones(state, tmp_path):
    answers = sv.answers(state)
    text = write(state, tmp_path / "d.html").read_text()
    shown = json.loads(text.partition('id="view">')[2].partition("</script>")[0])
    assert shown == view.page_of(answers, view.ledger_records(state, None))[0]
    for chart in shown["charts"][:2]:
        assert len(chart["x"]) == len(answers.moments)
        assert len(chart["breaks"]) == len({m.window for m in answers.moments}) - 1
        at = dict(zip(chart["x"], answers.moments, strict=True))
        for line in chart["lines"]:
            values = {at[point["x"]]: (point["v"], point["lo"], point["hi"])
                      for point in line["points"]}  # fmt: skip
            for moment in answers.moments:
                table = answers.releases.table(moment).to_pylist()
                row = next((row for row in table if row["page"] == line["label"]), None)
                name = chart["name"]
                known = None if row is None else tuple(
                    row[name + end] for end in ("", "_low", "_high")
                )  # fmt: skip
                assert values.get(moment) == known


@pytest.mark.parametrize(("zone", "every", "places"), [
    ("", "1 month", ["2026-01-01", "2026-02-01", "2026-03-01"]),
    ("America/New_York", "1 month", ["2026-01-01", "2026-02-01", "2026-03-01"]),
    ("", "15 days", None),  # several releases of a window stand where their rows end
])  # fmt: skip
def test_a_window_with_one_release_stands_where_it_begins(zone, every, places, tmp_path):
    """June stood at the tick of July, where it ends."""
    at = np.arange("2026-01-02", "2026-04-01", dtype="datetime64[D]").astype("datetime64[us]")
    table = pa.table({"u": np.arange(len(at)), "c": ["a"] * len(at), "ts": at})
    state = tmp_path / "s"
    query = (
        sv.memory(table, event_time="ts", name="t").protect("u")
        .window(sv.tumble("1 month", tz=zone))
        .group_by("c", keys=sv.public(["a"])).agg(n=sv.count()).bound(max_rows=1)
        .release(every=every, start="2026-01-01", end="2026-04-01",
                 budget=sv.Budget(epsilon=20, delta=1e-3))
    )  # fmt: skip
    list(query.run(str(state), noise=SeededNoise(1), insecure=True))
    shown = view.page_of(sv.answers(state), view.ledger_records(state, None))[0]["charts"][0]
    found = np.array(shown["x"]).astype("datetime64[ms]")
    if places is None:
        assert found[0] == np.datetime64("2026-01-16")
    else:
        assert found.tolist() == np.array(places, "datetime64[ms]").tolist()
        assert [text[:7] for text in shown["ticks"]] == [text[:7] for text in places]


def test_a_page_loads_nothing_and_no_key_leaves_its_text(state, tmp_path):
    """The policy is the browser's to hold; the JSON inside ends no element."""
    text = write(state, tmp_path / "d.html").read_text()
    data = text.partition('id="view">')[2].partition("</script>")[0]
    assert "<" not in data
    assert HOSTILE.replace("<", "\\u003c") in data.replace('\\"', '"')
    assert "default-src &#x27;none&#x27;" in text


def test_a_sinks_folder_without_facts_or_ledger(tmp_path):
    sink = FilesSink(str(tmp_path / "out"), "csv")
    for release in released("public")[:2]:
        sink.write("job", release)
    text = "".join(parsed(write(tmp_path / "out", tmp_path / "d.html")).text)
    assert "without a ledger" in text
    assert "releases" in text


def test_a_folder_of_releases_without_a_number_is_refused_in_words(tmp_path):
    """A page of LOGICAL_AND alone, from its sink, ended with an IndexError."""
    sink, told = FilesSink(str(tmp_path)), pa.table({"page": ["a"], "m": [True], "trigger": [1]})
    sink.write("job", made(told, 0, 1, 1))
    with pytest.raises(PlanError, match="no number that has an interval"):
        write(tmp_path / "job", tmp_path / "page.html")


def test_many_releases_are_thinned_to_the_last(monkeypatch):
    moments = [charts.Moment(0, trigger) for trigger in range(1, 2001)]
    few = charts.chosen(moments)
    assert len(few) == charts.POINTS
    assert (few[0], few[-1]) == (moments[0], moments[-1])
    assert few == sorted(set(few))


def test_the_missing_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"streamveil\[plots\]"):
        draw.figure_of(charts.Chart("n", ("1",), (), (), (), ""))


def test_a_group_whose_name_begins_with_an_underscore_is_named():
    value = np.array([1.0, 2.0])
    lines = tuple(charts.Line(name, value, value - 1, value + 1) for name in ("_home", "news"))
    figure = draw.figure_of(charts.Chart("n", ("1", "2"), (), (), lines, ""))
    assert [axes.get_title("left") for axes in figure.axes] == ["_home", "news"]


def windows(*counts):
    """Releases of windows, each with so many groups: the k-th of them counts k."""
    return [
        made(window=window, table=pa.table({
            "page": pa.array([f"page {i}" for i in range(n)], pa.string()),
            "n": pa.array(range(n), pa.float64()), "n_sd": pa.array([1.0] * n, pa.float64()),
            "n_low": pa.array(range(n), pa.float64()), "n_high": pa.array(range(n), pa.float64()),
        }).replace_schema_metadata({TIME: kept_time(ReleaseTime(window, f"day {window}", None))}))
        for window, n in enumerate(counts)
    ]  # fmt: skip


@pytest.mark.parametrize(("counts", "labels"), [
    ((9, 8, 0), [f"page {i}" for i in (7, 6, 5, 4, 3, 2)]),
    ((8, 2, 0, 0), [f"page {i}" for i in (1, 0, 7, 6, 5, 4)]),
    ((2, 0), ["page 1", "page 0"]), ((0, 0), []),
])  # fmt: skip
def test_a_last_window_without_groups_leaves_the_others_on_the_page(counts, labels, tmp_path):
    answers = Answers(of_releases(windows(*counts)))
    (chart,) = view.page_of(answers, {})[0]["charts"]
    assert [line["label"] for line in chart["lines"]][: len(labels)] == labels
    for line in chart["lines"]:
        group = int(line["label"].split()[1])
        at = [place for place, n in zip(chart["x"], counts, strict=True) if group < n]
        assert [(point["x"], point["v"]) for point in line["points"]] == [(x, group) for x in at]
        assert bool(line["hidden"]) == (len(at) < len(counts))
    text = page.html(answers, {})
    last = max((window for window, n in enumerate(counts) if n), default=None)
    if last is not None:
        assert f"Largest groups at day {last} · 1" in text
        assert f"<td>page {counts[last] - 1}</td>" in text
