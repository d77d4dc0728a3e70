"""Several private answers in one statement: joined, united, charged one by one and as a whole."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from math import sqrt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from scipy.stats import norm

import streamveil as sv
from streamveil.accounts import Journal
from streamveil.accounts.ledger import Ledger
from streamveil.api.script import JointQuery, query_of
from streamveil.batch import Release
from streamveil.cli import app
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.noisy import public
from streamveil.errors import BudgetError, PlanError, SourceError, StoreError
from streamveil.release_metadata import numbers_of
from streamveil.results.post import processed_together
from streamveil.runtime import joint
from streamveil.runtime import run as runs
from streamveil.runtime.joint import guarantee_of
from streamveil.runtime.watch import Watch, exposition
from streamveil.sql.sql import parse_script

DAYS = 3
ROWS = pa.table({
    "user": list(range(3000)), "other": list(range(3000)), "day": [1, 2, 3] * 1000,
    "bought": [1, 0, 0, 0, 1, 0] * 500,
})  # fmt: skip
OPTIONS = (
    "delta = 1e-9, privacy_unit_column = user, max_rows_contributed = 1, look_share = 0,"
    " cut_share = 0, public_groups = [1, 2, 3]"
)
DP = f"WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, {OPTIONS})"
ALL = DP.replace(", public_groups = [1, 2, 3]", "")
SEEN = f"SELECT {DP} day, COUNT(*) AS n FROM t GROUP BY day"
BOUGHT = f"SELECT {DP} day, COUNT(*) AS n FROM t WHERE bought = 1 GROUP BY day"
SHARE = (
    f"WITH seen AS ({SEEN}), bought AS ({BOUGHT}) SELECT day, bought.n / seen.n AS share "
    "FROM seen JOIN bought USING (day) ORDER BY day DESC"
)
STATEMENTS = [  # and the rows that they give, but for noise
    (SHARE, [(3, 0.0), (2, 0.5), (1, 0.5)]),
    (f"SELECT a.day, a.n - b.n AS more FROM ({SEEN}) AS a, ({BOUGHT}) AS b WHERE a.day = b.day"
     " ORDER BY day", [(1, 500), (2, 500), (3, 1000)]),
    (f"SELECT a.day, a.n / b.n AS part FROM ({SEEN}) AS a CROSS JOIN "
     f"(SELECT {ALL} COUNT(*) AS n FROM t) AS b ORDER BY day", [(d, 1 / 3) for d in (1, 2, 3)]),
    (f"SELECT today.day, today.n - before.n AS more FROM ({SEEN}) AS today LEFT JOIN "
     f"(SELECT {DP} day + 1 AS day, COUNT(*) AS n FROM t GROUP BY day) AS before "
     "ON today.day = before.day ORDER BY day", [(1, 1000), (2, 0), (3, 0)]),
    (f"{SEEN} UNION ALL {BOUGHT} ORDER BY n DESC LIMIT 3", [(None, 1000)] * 3),
    (f"WITH a AS ({SEEN} UNION ALL {BOUGHT}) SELECT day, n FROM a WHERE day = 2 ORDER BY n",
     [(2, 500), (2, 1000)]),
    (f"WITH a AS ({SEEN}), b AS ({BOUGHT}) SELECT day, n FROM b WHERE day > 1 UNION ALL "
     "SELECT 0, SUM(n) FROM a", [(2, 500), (3, 0), (0, 3000)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), STATEMENTS)
def test_answers_are_put_together(text, wanted):
    query = sv.sql(text, {"t": ROWS})
    assert isinstance(query, JointQuery)
    table = query.answer().table
    name = numbers_of(table.column_names)[-1]
    found = list(zip(table["day"].to_pylist(), table[name].to_pylist(), strict=True))
    assert len(found) == len(wanted)
    for (day, number), (right, about) in zip(found, wanted, strict=True):
        assert right is None or day == right
        assert abs(number - about) < 20
    assert all(
        low is None or low <= high
        for low, high in zip(
            table[name + "_low"].to_pylist(), table[name + "_high"].to_pylist(), strict=True
        )
    )


def test_the_same_in_python_and_a_part_alone():
    seen, bought = (sv.sql(text, {"t": ROWS}) for text in (SEEN, BOUGHT))
    query = sv.sql(SHARE[SHARE.index("SELECT day, bought") :], {"seen": seen, "bought": bought})
    assert query.plan.post == sv.sql(SHARE, {"t": ROWS}).plan.post
    assert [part.name for part in query.plan.parts] == ["seen", "bought"]
    assert query.answer().table.num_rows == DAYS


def released(n, sd, low=None):
    """A release as a group-by writes it, with public numbers."""
    facts = (
        b'{"version":1,"job":"j","confidence":0.95,"windows":{},"rounds":false,"outputs":'
        b'[{"name":"n","function":"count","lanes":[0]}]}'
    )
    z = norm.ppf(0.975)
    table = pa.table({
        "day": list(range(len(n))), "n": n, "n_sd": [sd] * len(n), "n_low": n - z * sd,
        "n_high": n + z * sd, "trigger": [1] * len(n),
    })  # fmt: skip
    return table.replace_schema_metadata({b"streamveil": facts})


def test_intervals_know_that_noise_of_two_answers_is_their_own():
    """False alarms: below 1e-6, of 20,000 intervals of 95 %."""
    rng, n = np.random.default_rng(3), 20_000
    post = sv.sql(SHARE.replace("ORDER BY day DESC", "").replace(
        "AS share", "AS share, seen.n - 2 * bought.n AS rest"), {"t": ROWS}).plan.post  # fmt: skip
    seen, bought = 1000 + rng.normal(0, 30, n), 400 + rng.normal(0, 20, n)
    names = ("seen", "bought")
    table = processed_together(post, names, released(seen, 30.0), released(bought, 20.0))
    for name, truth in (("share", 0.4), ("rest", 200.0)):
        low, high = (table[name + end].to_numpy() for end in ("_low", "_high"))
        hit = ((low <= truth) & (truth <= high)).mean()
        assert abs(hit - 0.95) < 5 * sqrt(0.95 * 0.05 / n), name


def test_a_number_that_meets_several_rows_is_one_draw():
    """A total over rows of a cross join adds up deviations, and not variances."""
    text = (
        f"SELECT SUM(b.n) AS all_of_it FROM ({SEEN}) AS a CROSS JOIN "
        f"(SELECT {ALL} COUNT(*) AS n FROM t) AS b"
    )
    post = sv.sql(text, {"t": ROWS}).plan.post
    one = released(np.array([50.0]), 2.0).drop_columns(["day"])
    table = processed_together(post, ("a", "b"), released(np.array([1.0, 2, 3]), 1.0), one)
    assert table["all_of_it_sd"].to_pylist() == [6.0]
    twice = "SELECT x.day, x.n - y.n AS none FROM a AS x JOIN a AS y USING (day)"
    post = sv.sql(f"WITH a AS ({SEEN}), b AS ({BOUGHT}) {twice} JOIN b USING (day)", {"t": ROWS})
    same = released(np.array([50.0, 60.0]), 2.0)
    table = processed_together(post.plan.post, ("a", "b"), same, same)
    assert table["none_high"][0].as_py() >= 2 * 2.0  # the worst: it may be another draw


def gaussian_delta(mu, epsilon):
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_the_account_of_all_answers_together_is_never_below_the_exact_loss(epsilon):
    """One person in both answers moves one count of each by 1: two Gaussians, side by side."""
    text = SHARE.replace("epsilon = 4", f"epsilon = {epsilon}")
    joint = sv.sql(text, {"t": ROWS}).plan
    claim = guarantee_of(joint.parts)
    sds = [part.explain().facts["noise"]["n"][1]
           for part in (sv.sql(text, {"t": ROWS}) for text in
                        (one.replace("epsilon = 4", f"epsilon = {epsilon}")
                         for one in (SEEN, BOUGHT)))]  # fmt: skip
    mu = sqrt(sum(sd**-2 for sd in sds))
    for at in (epsilon / 2, epsilon, 1.4 * epsilon, 2 * epsilon):
        assert claim.delta_at(at) >= gaussian_delta(mu, at) * (1 - 1e-6)
    alone = guarantee_of(joint.parts[:1])  # the fault: to claim what one of them costs
    assert alone.delta_at(epsilon) < gaussian_delta(mu, epsilon)
    explained = sv.sql(text, {"t": ROWS}).explain()
    assert explained.facts["epsilon"] == claim.epsilon(2e-9)
    assert "all together" in str(explained)


def test_a_ledger_is_charged_for_all_or_for_none(tmp_path):
    rows = Neighbours("user")
    small, large = tmp_path / "small.ledger", tmp_path / "large.ledger"
    Ledger.open(small, Budget(epsilon=5, delta=1e-8), rows).close()
    Ledger.open(large, Budget(epsilon=12, delta=1e-8), rows).close()
    query = sv.sql(SHARE, {"t": ROWS})
    with pytest.raises(BudgetError):
        list(query.run(str(tmp_path / "a"), ledger=str(small)))
    with Ledger.load(small) as ledger:
        assert ledger.spent() == Loss()
    list(query.run(str(tmp_path / "b"), ledger=str(large)))
    with Ledger.load(large) as ledger:
        assert ledger.spent().epsilon(2e-9) == pytest.approx(
            guarantee_of(query.plan.parts).epsilon(2e-9)
        )


def test_no_other_job_comes_between_the_charges_of_one_statement(tmp_path, monkeypatch):
    """A job that takes the room after it was looked at: nothing of the statement is charged."""
    shared, query = tmp_path / "shared.ledger", sv.sql(SHARE, {"t": ROWS})
    Ledger.open(shared, Budget(epsilon=6.5, delta=1e-8), Neighbours("user")).close()  # for two
    other, honest = guarantee_of(query.plan.parts[:1]), joint.require_room

    def takes_room(*arguments):
        honest(*arguments)
        with Ledger.load(shared) as ledger:
            ledger.charge("another job", other)

    monkeypatch.setattr(joint, "require_room", takes_room)
    with pytest.raises(BudgetError, match="charging 'bought' would overspend"):
        list(query.run(str(tmp_path / "late"), ledger=str(shared)))
    with Ledger.load(shared) as ledger:
        assert [one.name for one in ledger.entries()] == ["another job"]
    assert not any((tmp_path / "late").iterdir())
    monkeypatch.undo()
    appended = []
    journal = Journal.append
    monkeypatch.setattr(
        Journal, "append", lambda self, records: appended.append(records) or journal(self, records)
    )
    roomy = tmp_path / "roomy.ledger"
    Ledger.open(roomy, Budget(epsilon=6.5, delta=1e-8), Neighbours("user")).close()
    releases = list(query.run(str(tmp_path / "new"), ledger=str(roomy)))
    assert [len(records) for records in appended].count(2) == 1  # both in one write
    with Ledger.load(roomy) as ledger:
        paid = ledger.entries()
        assert len(paid) == 2
        assert all(one.about for one in paid)
    again = list(query.run(str(tmp_path / "new"), ledger=str(roomy)))  # pays nothing more
    with Ledger.load(roomy) as ledger:
        assert ledger.entries() == paid
    assert [one.table for one in again] == [one.table for one in releases]


def test_all_answers_are_charged_before_any_of_them_looks(tmp_path, monkeypatch):
    looking = SHARE.replace("max_rows_contributed = 1, look_share = 0", "look_share = 0.1")
    query, shared = sv.sql(looking, {"t": ROWS}), tmp_path / "shared.ledger"
    Ledger.open(shared, Budget(epsilon=9, delta=1e-8), Neighbours("user")).close()
    honest, paid = runs.looked, []

    def looked(*given):
        with Ledger.load(shared) as ledger:
            paid.append([one.name for one in ledger.entries()])
        return honest(*given)

    monkeypatch.setattr(runs, "looked", looked)
    first = list(query.run(str(tmp_path / "s"), ledger=str(shared)))
    assert paid == [["seen", "bought"]] * 2
    with Ledger.load(shared) as ledger:
        assert ledger.spent() == guarantee_of(query.plan.parts).loss
        names = [one.name for one in ledger.entries()]
    assert names == ["seen", "bought", "seen, settings", "bought, settings"]
    again = list(query.run(str(tmp_path / "s"), ledger=str(shared)))
    assert [one.table for one in again] == [one.table for one in first]
    assert len(paid) == 2


def test_a_killed_run_gives_the_same_releases(tmp_path):
    text = SHARE.replace("public_groups", "steps = 5, public_groups").replace(
        "ORDER BY day DESC", "ORDER BY day EMIT EVERY 600 ROWS"
    )
    query = sv.sql(text, {"t": ROWS})
    whole = {one.trigger: one.table for one in query.run(str(tmp_path / "whole"))}
    assert sorted(whole) == [1, 2, 3, 4, 5]
    state = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", state)
    shutil.rmtree(state / "bought")  # as if that job had never begun: it draws its own noise
    again = {one.trigger: one.table for one in query.run(str(state))}
    assert sorted(again) == sorted(whole)
    assert all(again[t]["day"] == whole[t]["day"] for t in whole)
    broken = query.run(str(tmp_path / "begun"))
    first = next(broken)
    broken.close()
    rest = {one.trigger: one.table for one in query.run(str(tmp_path / "begun"))}
    assert sorted(rest) == [1, 2, 3, 4, 5]
    assert rest[first.trigger] == first.table


class Steps:
    """A job that has closed some steps; it releases at the last of them again, then at later ones.

    It notes the step that it waits for.
    """

    def __init__(self, name, closed, waits):
        self.name, self.closed_steps, self.waits = name, closed, waits

    def __iter__(self):
        for step in range(self.closed_steps, 5):
            if step > self.closed_steps:
                self.waits.append((step, self.name))
                self.closed_steps = step
            yield Release(public(ROWS), 0, step, step)


def test_no_job_waits_for_a_step_while_another_one_has_steps_to_make_up():
    waits = []
    jobs = [Steps("a", 3, waits), Steps("b", 1, waits)]
    held = [{}, {}]
    for _ in joint.turns(jobs, held):
        pass
    assert waits[:2] == [(2, "b"), (3, "b")]
    assert sorted(waits[2:]) == [(4, "a"), (4, "b")]
    assert {step for _, step in held[0]} == {3, 4}
    assert {step for _, step in held[1]} == {1, 2, 3, 4}


def test_the_command_line_runs_and_explains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(
        "user,day,bought\n" + "".join(f"{i},{1 + i % 3},{i % 2}\n" for i in range(3000))
    )
    text = (
        "CREATE STREAM t (user INT64, day INT64, bought INT64)"
        " WITH (source = 'files', path = 't.csv');"
        "CREATE SINK out WITH (sink = 'files', path = 'out', format = 'csv');"
        f"CREATE VIEW seen AS {SEEN}; CREATE VIEW bought AS {BOUGHT}; INSERT INTO out SELECT day, "
        "bought.n / seen.n AS share FROM seen JOIN bought USING (day)"
    )
    (tmp_path / "q.sql").write_text(text)
    done = CliRunner().invoke(app, ["run", "q.sql", "--state", "s", "--quiet"])
    assert done.exit_code == 0, done.output
    [file] = (tmp_path / "out").rglob("trigger=*.csv")
    assert file.read_text().startswith('"day","share",')
    assert (tmp_path / "s" / "seen").is_dir()
    assert (tmp_path / "s" / "bought").is_dir()
    said = CliRunner().invoke(app, ["explain", "q.sql"])
    assert "all together" in said.output


def test_what_was_put_together_is_read_drawn_and_verified(tmp_path, monkeypatch):
    """From the states of all answers, by the statement that puts them together."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},{1 + i % 3},{i % 2},2026-01-0{1 + i % 2}T05:00:00Z\n" for i in range(3000))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t.csv").write_text("user,day,bought,at\n" + rows)
    timed = OPTIONS + ", start = '2026-01-01', end = '2026-01-03'"
    parts = [
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, {timed}) window_start, day,"
        f" COUNT(*) AS n FROM TUMBLE(TABLE t, DESCRIPTOR(at), size => INTERVAL 1 DAY) {where}"
        " GROUP BY window_start, day EMIT EVERY INTERVAL 1 DAY"
        for where in ("", "WHERE bought = 1")
    ]
    text = LIVE.format(seen=parts[0], bought=parts[1]).replace("INSERT INTO out ", "")
    (tmp_path / "q.sql").write_text(text)
    query = query_of(parse_script(text).named(None).plan)
    made = list(query.run("s"))
    assert len(made) == 2
    found = sv.answers("s", query=query)
    assert [found.releases.table(one) for one in found.moments] == [one.table for one in made]
    with pytest.raises(SourceError, match=r"several private answers: .*\n  to fix .*--sql FILE"):
        sv.read("s")
    (tmp_path / "s2" / "seen").mkdir(parents=True)
    shutil.copytree("s/s", "s2/s")
    with pytest.raises(StoreError, match="not all private answers of this statement"):
        sv.answers("s2", query=query)
    shutil.copytree("s", "s3")
    (tmp_path / "s3" / "s" / "releases").unlink()
    with pytest.raises(StoreError, match="'s' has lost its releases"):
        sv.answers("s3", query=query)
    list(query.run("s4", keep_releases=1))
    with pytest.raises(PlanError, match="1 earlier ones are not kept any more"):
        sv.answers("s4", query=query).releases.table(found.moments[0])
    with pytest.raises(PlanError, match=r"engine=streamveil\.spark"):
        query.run("t", engine="spark")
    other = query_of(parse_script(text.replace("bought = 1", "bought = 0")).named(None).plan)
    with pytest.raises(StoreError, match="the query changed"):
        sv.answers("s", query=other)

    def told(*command):
        done = CliRunner().invoke(app, [*command, "s", "--sql", "q.sql"])
        assert done.exit_code == 0, done.output
        return done.output

    assert "window 2026-01-02, release 1" in told("read")
    assert "2026-01-01/1" in told("read", "--list")
    told("dashboard", "--out", "d.html")
    page = (tmp_path / "d.html").read_text()
    assert "share" in page
    assert "<h1>s and b</h1>" in page
    done = CliRunner().invoke(app, ["verify-privacy", "q.sql", "--seconds", "1"])
    assert done.exit_code == 0, done.output
    assert done.output.count("the claim stands") == 2


LIVE = """CREATE STREAM t (user INT64, day INT64, bought INT64, at TIMESTAMP)
    WITH (source = 'files', path = 'in/*.csv', event_time = 'at', follow = FALSE);
CREATE SINK out WITH (sink = 'files', path = 'out', format = 'csv');
INSERT INTO out SELECT window_start, day, b.n / s.n AS share FROM ({seen}) AS s JOIN ({bought}) AS b
    USING (window_start, day)"""


def test_answers_in_windows_are_told_and_keep_the_rows_that_they_cannot_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    rows = [f"{user},{user % 3 + 1},{user % 2},2026-01-0{1 + user % 2}T05:00:00Z"
            for user in range(3_000)]  # fmt: skip
    Path("in", "a.csv").write_text("\n".join(["user,day,bought,at", *rows, "x,,,", ""]))
    days = "TUMBLE(TABLE t, DESCRIPTOR(at), size => INTERVAL 1 DAY)"
    dp = DP.replace("public_groups", "start = '2026-01-01', end = '2026-01-03', public_groups")
    one = (
        f"SELECT {dp} window_start, day, COUNT(*) AS n FROM {days} {{}} GROUP BY window_start, day"
    )
    emit = " EMIT EVERY INTERVAL 12 HOUR"
    Path("q.sql").write_text(
        LIVE.format(seen=one.format("") + emit, bought=one.format("WHERE bought = 1") + emit)
    )
    command = [
        "run",
        "q.sql",
        "--state",
        "s",
        "--log",
        "text",
        "--metrics",
        "0",
        "--rejects",
        "bad",
    ]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for name in ("s", "b"):
        assert f" {name}: step 4, 4 releases of this run" in done.stderr
    assert "nothing is left to do" in done.stderr
    assert len(list(Path("out").rglob("*.csv"))) == 4  # two windows, two triggers each
    for name in ("s", "b"):  # each answer keeps the rows that it could not use
        assert any(path.is_file() for path in Path("bad", name).rglob("*.parquet"))
    again = CliRunner().invoke(app, command, catch_exceptions=False)
    assert again.exit_code == 0, again.output
    parts = parse_script(Path("q.sql").read_text(), {}).joints[0].plan.parts
    whole = CliRunner().invoke(app, ["verify", "s"])
    assert whole.exit_code == 0, whole.output
    assert "s, ledger" in whole.output
    assert "b, ledger" in whole.output
    for command in (["read", "s"], ["dashboard", "s"]):
        with pytest.raises(SourceError, match="several private answers: b, s"):
            CliRunner().invoke(app, command, catch_exceptions=False)
    shown = exposition(*(Watch(one, Path("s", one.name), now=lambda: 0.0) for one in parts))
    assert shown.count(b'streamveil_epsilon_charged{job="') == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SHARE.replace("user, max", "other, max", 1), "nobody could say what both together"),
        (SHARE.replace("seen JOIN bought USING (day)", "seen JOIN bought ON seen.n = bought.n"),
         "noisy number"),
        (SHARE.replace("bought.n / seen.n", "n"), "write seen.n or bought.n"),
        (SHARE.replace("USING (day)", "ON seen.day < bought.day"), "joined by equal columns"),
        (SHARE.replace("seen JOIN bought USING (day)", "seen NATURAL JOIN bought"), "USING"),
        (SHARE.replace("look_share", "confidence = 0.9, look_share", 1), "confidence differs"),
        (SHARE.replace("seen JOIN bought", "seen JOIN t"), "not a private answer"),
        (SHARE.replace("delta =", "name = 'x', delta ="), "two private answers are called 'x'"),
        (SEEN.replace("FROM t", f"FROM ({BOUGHT})"), "stands inside another one"),
        (SHARE.replace("SELECT day, bought.n / seen.n AS share", "SELECT day, other"), "other"),
        (SHARE.replace("SELECT day", "SELECT seen.window_start"),
         "unknown column 'seen.window_start'.*did you mean 'window_start'"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(text, why):
    with pytest.raises(PlanError, match=why):
        sv.sql(text, {"t": ROWS})


def test_an_answer_may_be_called_like_the_folder_of_another_one_on_spark(tmp_path):
    text = (
        f"WITH a AS ({SEEN}), `kept-a` AS ({BOUGHT})"
        " SELECT day, a.n FROM a JOIN `kept-a` USING (day) EMIT EVERY 600 ROWS"
    )
    both = sv.sql(text.replace("public_groups", "steps = 5, public_groups"), {"t": ROWS})
    first, again = (list(both.run(str(tmp_path / "s"))) for _ in range(2))
    assert [one.table for one in first] == [one.table for one in again]
    with pytest.raises(PlanError, match="is that of two things"):
        list(joint.run_joint(both.plan, state=tmp_path / "t", spark=object()))


def test_a_state_of_one_query_is_no_state_of_several(tmp_path):
    list(sv.sql(SEEN, {"t": ROWS}).run(str(tmp_path / "s")))
    with pytest.raises(StoreError, match="the state of one query"):
        list(sv.sql(SHARE, {"t": ROWS}).run(str(tmp_path / "s")))


@pytest.mark.parametrize("ledger", [None, "shared.ledger"])
def test_no_answer_is_charged_where_another_one_is_refused(ledger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Ledger.open("shared.ledger", Budget(epsilon=20, delta=1e-8), Neighbours("user")).close()
    folder = tmp_path / "rejects" / "bought"
    folder.mkdir(parents=True)
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="'bought'"):
        list(sv.sql(SHARE, {"t": ROWS}).run("s", ledger=ledger, rejects="rejects"))
    assert not list(tmp_path.glob("s/*/ledger"))
    with Ledger.load("shared.ledger") as shared:
        assert not shared.entries()


def test_only_what_may_leave_is_put_together():
    with pytest.raises((TypeError, PlanError), match=r"may leave|may hold data|Noisy"):
        Release(pa.table({"n": [1]}), 0, 1, 1)
    assert Release(public(pa.table({"n": [1]})), 0, 1, 1).trigger == 1


TIMES = pa.table({
    "user": [1, 2], "page": ["a", "b"],
    **{name: pa.array([0, 1], pa.timestamp("us", "UTC")) for name in ("ts", "seen")},
})  # fmt: skip
REGIONS = pa.table({"page": ["a", "b"], "region": ["north", "south"]})
OF_DAYS = ALL.replace(
    ", max",
    ", privacy_unit_period = INTERVAL 1 DAY, start = '1970-01-01', end = '1970-01-05', max",
    1,
)
BY_DAY = f"""
WITH own AS ({{}}),
a AS (SELECT {OF_DAYS} page, COUNT(*) AS n
      FROM TUMBLE(TABLE t, DESCRIPTOR(ts), size => INTERVAL 1 DAY) GROUP BY page, window_start
      EMIT EVERY INTERVAL 1 DAY),
b AS (SELECT {OF_DAYS} page, COUNT(*) AS n
      FROM TUMBLE(TABLE own, DESCRIPTOR(day), size => INTERVAL 1 DAY) GROUP BY page, window_start
      EMIT EVERY INTERVAL 1 DAY)
SELECT a.page, a.n, b.n AS m FROM a JOIN b ON a.page = b.page"""
OWN_TIMES = [
    ("SELECT user, page, {} AS day FROM t", "t"),
    ("SELECT user, page, {} AS day FROM again", "again"),
    ("SELECT user, part AS page, {} AS day FROM t, UNNEST(SPLIT(page, ',')) AS part", "t"),
    ("SELECT user, region AS page, day FROM (SELECT user, page, {} AS day FROM t)"
     " JOIN regions USING (page)", "t"),
    ("SELECT user, r.region AS page, v.day AS day FROM (SELECT user, page, {} AS day FROM t) AS v"
     " JOIN regions AS r USING (page)", "t"),
]  # fmt: skip


@pytest.mark.parametrize("time", ["ts", "TS", "seen"])
@pytest.mark.parametrize(("relation", "name"), OWN_TIMES)
def test_each_row_is_of_one_period_in_all_answers(relation, name, time):
    """A day by one time meets any number of days by another, in which the other answer changes."""
    given = {"t": TIMES, name: TIMES, "regions": sv.memory(REGIONS, name="regions", public=True)}
    refused = pytest.raises(PlanError, match="of two periods: by ts and by seen")
    with refused if time == "seen" else nullcontext():
        sv.sql(BY_DAY.format(relation.format(time)), given)


def test_periods_of_other_tables_may_follow_other_times():
    given = {"t": TIMES, "u": TIMES.slice(0, 1).take([0])}
    sv.sql(BY_DAY.format("SELECT user, page, seen AS day FROM u"), given)


def test_a_sink_that_cannot_be_reached_is_told_before_a_row_is_read(tmp_path):
    sink = f"CREATE SINK o WITH (sink = 'sqlite', path = '{tmp_path}', table = 'o');"
    query = sv.sql(f"{sink} INSERT INTO o {SHARE}", {"t": ROWS})
    with pytest.raises(SourceError, match="cannot write to the table 'o'"):
        list(query.run(state=str(tmp_path / "s")))
    assert not (tmp_path / "s").exists()


def test_a_run_that_stopped_at_an_error_does_not_seem_to_be_done(tmp_path):
    def failing(_):
        raise OSError("unplugged")

    query = sv.sql(SHARE, {"t": ROWS})
    run = query.run(str(tmp_path / "s"), progress=failing)
    with pytest.raises(OSError, match="unplugged"):
        next(run)
    with pytest.raises(StoreError, match=r"stopped by an error(.|\n)*to fix"):
        next(run)
    assert len(list(query.run(str(tmp_path / "s")))) == 1


def test_a_run_says_that_it_is_asked_while_it_makes_a_release(tmp_path):
    heard = []

    def asks(_):
        with pytest.raises(StoreError, match="making its next release") as refused:
            next(run)
        heard.append(refused)

    run = sv.sql(SHARE, {"t": ROWS}).run(str(tmp_path / "s"), progress=asks)
    assert len(list(run)) == 1
    assert heard
