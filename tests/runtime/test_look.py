"""A look at the rows: made once, paid within the budget, remembered, and worth its price."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamveil as sv
from streamveil.accounts.ledger import Ledger
from streamveil.advise import explain
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import forecasts
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.accounting.sequel import Sequel
from streamveil.core.mechanism import Look
from streamveil.core.noise import KeyedNoise, SeededNoise
from streamveil.errors import BudgetError, PlanError, StoreError, StreamveilError
from streamveil.plan import Window, plain
from streamveil.plan.look import divided, look_share, releases_told, told, with_look
from streamveil.release_metadata import look_sentence
from streamveil.runtime import look as looks
from streamveil.runtime import run as runs
from streamveil.runtime import survey as surveys
from streamveil.runtime.account import mechanisms_of
from streamveil.runtime.run import run
from streamveil.runtime.survey import Survey

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
UNITS, GROUPS, ROWS = 20_000, 200, 120_000


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(8)
    return pa.table({"user": rng.integers(0, UNITS, ROWS), "page": rng.integers(0, GROUPS, ROWS)})


def asked(rows, options="", budget="epsilon = 6, delta = 1e-9"):
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({budget}, privacy_unit_column = user{options})"
        " page, COUNT(*) AS n FROM t GROUP BY page"
    )
    return sv.sql(text, {"t": rows}).plan


def released(plan, state, seed=1):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(run(plan, state=state, noise=SeededNoise(seed), insecure=True))[-1].table


def error(table, rows):
    truth = np.bincount(rows["page"].to_numpy(), minlength=GROUPS)
    found = np.zeros(GROUPS)
    found[table["page"].to_numpy()] = table["n"].to_numpy()
    return np.abs(found - truth).sum() / ROWS


def test_the_first_query_that_everybody_writes_loses_hardly_a_row(rows, tmp_path):
    table = released(asked(rows), tmp_path / "a")
    assert table.num_rows == GROUPS
    assert sum(table["n"].to_pylist()) > 0.98 * ROWS
    blind = released(asked(rows, ", look_share = 0"), tmp_path / "b")
    assert error(table, rows) < 0.02 < 2 * 0.02 < error(blind, rows)


@pytest.mark.parametrize("options", ["", ", max_groups_contributed = 3"])
def test_the_bounds_after_a_look_are_told(rows, options, tmp_path):
    plan = asked(rows, options)
    table = released(plan, tmp_path / "a")
    bounds = compile_plan(looks.remembered(plan, tmp_path / "a")).bounds
    held = {bounds.max_rows, bounds.per_group, bounds.groups, bounds.quadratic} - {None}
    said = look_sentence(table.schema)
    assert held
    assert {f"{number:,}" for number in held} <= set(re.findall("at most ([0-9,]+)", said)), said


def test_the_forecast_after_a_look_is_about_the_error_that_is_met(rows, tmp_path):
    """One group for every 50 rows was assumed: 2,400 for 200, and forecasts 11 times too high."""
    plan, _ = looks.looked(with_look(asked(rows)), SeededNoise(1))
    ahead = [one.l1 / ROWS for _, one in forecasts(plan, compile_plan(plan))]
    met = error(released(asked(rows), tmp_path / "s"), rows)
    assert max(ahead) / 1.6 < met < 1.6 * min(ahead)


def plan_of(options, budget):
    none = pa.table({"user": pa.array([], pa.int64()), "page": pa.array([], pa.int64())})
    return with_look(asked(none, options, budget))


@given(
    st.sampled_from(["epsilon", "rho", "mu"]),
    st.fractions(Fraction(1, 1000), 20),
    st.fractions(Fraction(1, 100), Fraction(1, 2)),
    st.sampled_from(["", ", public_groups = [1, 2]", ", selection = 'gaussian'"]),
)
def test_look_and_rest_never_cost_more_than_the_budget(kind, size, share, known):
    budget = Budget(**{kind: size, "delta": Fraction(1, 10**9)})
    plan = replace(plan_of(f"{known}, look_share = 0.1", "mu = 1, delta = 1e-9"), budget=budget)
    plan = replace(plan, options={**plan.options, "look_share": share})
    division, chance = divided(plan), Fraction(10**8, 2**64)
    looked = Survey(division.looking, 3, Neighbours(unit="u")).guarantee.loss
    assert looked.fits(division.looking)
    if isinstance(division.after, Sequel):
        assert division.rest.epsilon == size
        assert division.after.look == division.looking.mu
        assert Fraction(division.after.joint) + chance <= budget.delta
    else:
        rest = division.rest.mu**2 if division.rest.mu else 2 * division.rest.rho
        assert (looked + Loss(gaussian=rest, chance=chance * (kind == "epsilon"))).fits(budget)


def test_the_operator_pays_for_the_look_whatever_it_said(rows):
    plan, claims = with_look(asked(rows)), set()
    assert look_share(plan) == Fraction(1, 20)
    for known in ({}, {"expected_rows": 2.0}, {"expected_rows": 20.0, "expected_repeats": 0.9}):
        operator = compile_plan(told(plan, known, []))
        assert isinstance(operator.look.after, Sequel)
        claims.add(operator.loss)
        without = replace(operator, design=replace(operator.design, look=None))
        assert without.guarantee.delta_at(6) <= divided(plan).rest.delta < Fraction(4, 10**10)
    [claim] = claims
    assert claim.fits(Budget(epsilon=6, delta=1e-9))


@pytest.mark.parametrize("budget", ["mu = 1, delta = 1e-9", "rho = 0.5, delta = 1e-9"])
@pytest.mark.parametrize("known", [", public_groups = [1, 2]", ", selection = 'gaussian'", ""])
def test_what_is_stated_does_not_depend_on_what_the_look_said(budget, known):
    """The planted fault: the loss of the settings that were chosen, which rows have a part in."""
    plan, claims, chosen = plan_of(f"{known}, look_share = 0.1", budget), set(), set()
    for said in ({}, {"expected_rows": 2.0}, {"expected_rows": 20.0, "expected_repeats": 0.9}):
        operator = compile_plan(told(plan, said, []))
        claims.add(operator.loss)
        chosen.add(replace(operator, design=replace(operator.design, look=None)).loss)
    [claim] = claims
    assert claim.fits(plan.budget)
    assert claim.rho() > 0.999 / 2
    assert all(one.gaussian <= operator.look.after.gaussian for one in chosen)
    less = replace(operator.look.after, gaussian=min(one.gaussian for one in chosen) / 2)
    with pytest.raises(ValueError, match="more than was set aside"):
        _ = planted(operator, loss=operator.look.loss, after=less).loss


def planted(operator, **changes):
    """The operator with another look."""
    return replace(operator, design=replace(operator.design, look=Look(**changes)))


def test_what_no_look_left_room_for_is_refused(rows):
    """Whole budgets after a look; a look of less noise; coins without a sequel."""
    plan = with_look(asked(rows))
    honest = compile_plan(told(plan, {"expected_rows": 6.0, "expected_units": 2e4}, []))
    whole = compile_plan(asked(rows, ", look_share = 0, selection = 'table'"))
    look = honest.look
    assert planted(honest, loss=look.loss, after=look.after).loss == honest.loss
    with pytest.raises(ValueError, match="more than was set aside"):
        _ = planted(whole, loss=look.loss, after=look.after).loss
    with pytest.raises(ValueError, match="of a look that loses"):
        _ = planted(honest, loss=look.loss.times(2), after=look.after).loss
    with pytest.raises(ValueError, match="more than was set aside"):
        _ = planted(whole, loss=look.loss, after=Loss(gaussian=100, delta=1)).loss


@pytest.mark.parametrize("epsilon", [600, 710, 100_000])
def test_an_epsilon_beyond_floats_is_divided_as_a_smaller_one(rows, epsilon, tmp_path):
    """Whoever wants to see the true numbers gives one; from 710 on it ended the job."""
    plan = asked(rows, budget=f"epsilon = {epsilon}, delta = 1e-9")
    assert explain(plan).facts["epsilon"] <= 600
    assert error(released(plan, tmp_path / "s"), rows) < 0.01


def test_the_look_draws_what_its_sequel_is_certified_for(rows):
    """The planted fault: noise of another budget does not keep what is charged."""
    looking = divided(with_look(asked(rows))).looking
    fits = [Survey(budget, 3, Neighbours(unit="u")).guarantee.loss.mu()
            for budget in (looking, Budget(epsilon=1, delta=Fraction(1, 10**9)))]  # fmt: skip
    assert fits[0] <= looking.mu * (1 + 1e-12)
    assert fits[1] > looking.mu


def test_a_look_is_made_once_and_remembered(rows, tmp_path, monkeypatch):
    plan, made = asked(rows), []
    monkeypatch.setattr(
        surveys, "survey", lambda *given, **more: made.append(1) or ORIGINAL(*given, **more)
    )
    first = released(plan, tmp_path / "s")
    again = released(plan, tmp_path / "s", seed=1)
    assert first.equals(again)
    assert made == [1]
    with pytest.raises(StoreError, match="query changed"):
        released(replace(plan, where="page > 3"), tmp_path / "s")


ORIGINAL = surveys.survey


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"sql": ", counter = 'nope'"}, "unknown counter"),
        ({"column": "SUM(y, contribution_bounds_per_row => (0, 1))"}, "unknown column 'y'"),
        ({"sink": "format = 'xml'"}, "unknown format"),
        ({"sink": "colour = 'red'"}, "no option 'colour'"),
        ({"secret": "zz"}, r"64 hexadecimal digits\.\n.*openssl rand -hex 32"),
        ({"secret": "env:NO_SUCH_VARIABLE"}, "is not set"),
        ({"keep_releases": 0}, "keep_releases must be"),
        ({"rejects": "s"}, "a directory of their own"),
        ({"ledger": "none.ledger"}, "no ledger"),
        ({"pace": runs.Pace(memory=10 << 20)}, "memory limit"),
        ({"path": "t.txt/o"}, "cannot write to .*[Nn]ot a directory"),
    ],
    ids=lambda one: "".join(one) if isinstance(one, dict) else "",
)
def test_what_needs_no_row_to_be_refused_is_refused_before_a_look_reads_all(
    rows, tmp_path, monkeypatch, mistake, words
):
    """A wrong word in a sink's options was told after hours of reading."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(surveys, "survey", lambda *_, **__: pytest.fail("it looked"))
    said = {"sql": "", "column": "COUNT(*)", "sink": "format = 'csv'", "path": "o"} | mistake
    (tmp_path / "t.txt").touch()
    text = (
        f"CREATE SINK o WITH (sink = 'files', path = '{said['path']}', {said['sink']});"
        " INSERT INTO o SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9,"
        f" privacy_unit_column = user{said['sql']})"
        f" page, {said['column']} AS n FROM t GROUP BY page"
    )
    known = {"sql", "column", "sink", "path"}
    options = {name: one for name, one in mistake.items() if name not in known}
    with pytest.raises(StreamveilError, match=words):
        run(sv.sql(text, {"t": rows}).plan, state="s", **options)
    assert not (tmp_path / "s").exists()


def test_a_job_that_looks_keeps_rejected_rows(rows, tmp_path):
    holes = pa.array([None, *rows["user"].to_pylist()[1:]], pa.int64())
    pq.write_table(rows.set_column(0, "user", holes), tmp_path / "rows.parquet")
    plan = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9,"
        " privacy_unit_column = user)"
        f" page, COUNT(*) AS n FROM '{tmp_path}/rows.parquet' GROUP BY page"
    ).plan
    assert look_share(with_look(plan))
    with run(plan, state=tmp_path / "s", rejects=tmp_path / "kept") as job:
        list(job)
    assert sum(pq.read_table(one).num_rows for one in (tmp_path / "kept").glob("*.parquet")) == 1


def test_a_job_that_was_cut_off_after_its_look_goes_on_with_it(rows, tmp_path):
    whole = released(asked(rows), tmp_path / "whole")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "look.json").write_bytes((tmp_path / "whole" / "look.json").read_bytes())
    assert released(asked(rows), tmp_path / "cut", seed=1).equals(whole)


def test_a_damaged_look_is_refused_and_a_lost_one_too(rows, tmp_path):
    released(asked(rows), tmp_path / "s")
    path = tmp_path / "s" / "look.json"
    text = path.read_text()
    path.write_text(text.replace("expected_rows", "expected_rowz", 1))
    with pytest.raises(StoreError, match=r"look\.json"):
        released(asked(rows), tmp_path / "s")
    path.unlink()
    with pytest.raises(StoreError, match="changed"):
        released(asked(rows), tmp_path / "s")


def test_a_ledger_without_room_is_told_before_any_row_is_read(rows, tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    Ledger.open(path, Budget(epsilon=1, delta=1e-9), Neighbours(unit="user")).close()
    monkeypatch.setattr(looks, "rows_of", lambda _: pytest.fail("rows were read"))
    with pytest.raises(BudgetError):
        run(asked(rows), state=tmp_path / "s", ledger=path)
    assert not (tmp_path / "s" / "look.json").exists()


def no_settings(*_):
    raise BudgetError("no settings")


def test_what_a_look_says_without_settings_for_it_changes_nothing(rows, monkeypatch):
    """A refusal would tell something of the rows, so the settings of no knowledge are taken."""
    monkeypatch.setattr(looks, "compile_plan", no_settings)
    assert looks.fitting(asked(rows)) is None
    made, kept = looks.looked(with_look(asked(rows)), SeededNoise(1))
    assert made.options["looked"]["options"] == kept["looked"]["options"] == {}


def test_what_a_look_reads_leaves_a_memory_limit_as_it_was(rows, tmp_path, monkeypatch):
    """Rows that are read make the process larger: a refusal after them would tell how many."""
    honest, held = surveys.taken, [1 << 28]

    def growing(*asked):
        held[0] = 1 << 40
        return honest(*asked)

    monkeypatch.setattr(surveys, "taken", growing)
    monkeypatch.setattr(runs, "resident_bytes", lambda: held[0])
    pace = runs.Pace(memory=1 << 30)
    for state in ("first", "second"):  # answers of one statement share a process
        assert list(run(asked(rows), state=tmp_path / state, pace=pace))
    with pytest.raises(PlanError, match="leaves nothing for state"):
        run(asked(rows), state=tmp_path / "small", pace=runs.Pace(memory=1 << 28))
    assert not (tmp_path / "small").exists()


def test_threads_see_the_same(rows, monkeypatch):
    monkeypatch.setattr(looks, "CHUNK", 1_000)
    plan = with_look(asked(rows))
    assert looks.looked(plan, SeededNoise(1), 3) == looks.looked(plan, SeededNoise(1))


class Killed(BaseException):
    """What a process cannot catch."""


def shared_ledger(path, epsilon=6.1):
    Ledger.open(path, Budget(epsilon=epsilon, delta=1e-8), Neighbours(unit="user")).close()
    return path


def charges(path):
    with Ledger.load(path) as ledger:
        return [(one.name, one.loss, one.key) for one in ledger.entries()]


@pytest.mark.parametrize("killed_at", ["looked", "keep", "settle", "Job"])
def test_a_look_is_charged_first_and_once_and_made_once(rows, tmp_path, monkeypatch, killed_at):
    """Killed between charge and look, and after each step that follows: the same look and job.

    The planted fault, until this was mended: room was asked for before a look and charged after it,
    so another job could take it in between, and what the look had said stood unpaid.
    """
    plan, ledger = asked(rows), shared_ledger(tmp_path / "ledger")
    seen, honest = [], runs.looked
    monkeypatch.setattr(
        runs, "looked", lambda *given: seen.append(charges(ledger)) or honest(*given)
    )
    whole = run(plan, state=tmp_path / "whole", ledger=ledger)
    [paid] = seen[0]
    with Ledger.load(ledger) as opened:
        assert paid[1] == whole.work.operator.guarantee.loss == opened.spent()
        first, settings = opened.entries()
    assert first.key == whole._store.header.epoch
    assert "mechanisms" not in first.about
    assert settings.about["mechanisms"] == plain(mechanisms_of(whole.work.operator))
    whole.close()
    other, state = shared_ledger(tmp_path / "other"), tmp_path / "cut"
    secret = "ab" * 32
    looked_at = []

    def killed(*given, **_):
        if killed_at == "looked":
            looked_at.append(honest(*given)[1])
        raise Killed

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(runs, killed_at, killed)
            with pytest.raises(Killed):
                run(plan, state=state, ledger=other, secret=secret)
        assert len(charges(other)) == 1
    for one in looked_at:  # the same noise
        assert one == looked_at[0]
    releases = list(run(plan, state=state, ledger=other, secret=secret))
    assert [name for name, *_ in charges(other)] == [first.name, settings.name]
    again = list(run(plan, state=state, ledger=other, secret=secret))
    assert len(charges(other)) == 2
    assert again[-1].table == releases[-1].table
    with pytest.raises(StoreError, match="query changed"):
        run(replace(plan, where="page > 3"), state=state, ledger=other, secret=secret)


def test_a_job_that_takes_the_room_comes_before_the_look_or_after_its_charge(
    rows, tmp_path, monkeypatch
):
    """In between there is nothing: it is refused, or the look is, before any row is read."""
    plan, ledger = asked(rows), shared_ledger(tmp_path / "ledger")
    claim = compile_plan(with_look(plan)).guarantee
    honest, read = looks.require, looks.rows_of

    def takes_room(*given):
        honest(*given)
        with Ledger.load(ledger) as opened:
            opened.charge("another job", claim)

    with monkeypatch.context() as patched:
        patched.setattr(looks, "require", takes_room)
        patched.setattr(looks, "rows_of", lambda _: pytest.fail("rows were read"))
        with pytest.raises(BudgetError, match=r"would overspend[^$]*which counts as epsilon=6 "):
            run(plan, state=tmp_path / "late", ledger=ledger)
    assert [name for name, *_ in charges(ledger)] == ["another job"]
    assert not (tmp_path / "late").exists()
    roomy = shared_ledger(tmp_path / "roomy")

    def refused(plan):
        with Ledger.load(roomy) as opened, pytest.raises(BudgetError):
            opened.charge("another job", claim)
        return read(plan)

    monkeypatch.setattr(looks, "rows_of", refused)
    run(plan, state=tmp_path / "early", ledger=roomy).close()
    assert len(charges(roomy)) == 2


@pytest.mark.parametrize("with_ledger", [False, True])
def test_two_looks_under_one_key_share_no_noise(rows, tmp_path, monkeypatch, with_ledger):
    """The planted fault, found by drawing twice: a job's own epoch parts its noise from that of all
    others under one key, and its look had none; two looks differed by nothing but a person's rows.
    """
    noise, drawn = KeyedNoise.fresh(), []
    more = pa.concat_tables([rows, rows.slice(0, 1)])
    monkeypatch.setattr(
        runs,
        "looked",
        lambda plan, of, *rest: (
            drawn.append(of.at("survey", 0).words(4)) or honest(plan, of, *rest)
        ),
    )
    honest = looks.looked
    for name, some in (("a", rows), ("b", more)):
        ledger = shared_ledger(tmp_path / name) if with_ledger else None
        run(asked(some), state=tmp_path / f"{name}.veil", noise=noise, ledger=ledger).close()
    assert not np.isin(*drawn).any()


def test_a_job_charged_before_its_look_looks_without_the_ledger_too(rows, tmp_path, monkeypatch):
    """Its state says that a look comes first: it is no job of a query that never looked."""
    plan, ledger = asked(rows), shared_ledger(tmp_path / "ledger")
    with monkeypatch.context() as patched:
        patched.setattr(runs, "looked", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            run(plan, state=tmp_path / "s", ledger=ledger)
    assert not (tmp_path / "s" / "look.json").exists()
    run(plan, state=tmp_path / "s").close()
    assert (tmp_path / "s" / "look.json").exists()
    assert len(charges(ledger)) == 1


@pytest.mark.parametrize(
    ("options", "budget", "looks_first"),
    [
        ("", "epsilon = 1, delta = 1e-9", True),
        ("", "mu = 1, delta = 1e-9", True),
        (", expected_rows = 3", "epsilon = 1, delta = 1e-9", False),
        (", look_share = 0", "epsilon = 1, delta = 1e-9", False),
        (
            ", public_groups = [1, 2], max_groups_contributed = 2",
            "epsilon = 1, delta = 1e-9",
            False,
        ),
        (", public_groups = [1, 2]", "epsilon = 1, delta = 1e-9", True),
    ],
)
def test_who_knows_is_not_asked(rows, options, budget, looks_first):
    assert bool(look_share(with_look(asked(rows, options, budget)))) == looks_first


def followed(folder, more="", source="follow = TRUE", emit="30000 ROWS"):
    """The query over a folder that is followed: 4 releases of 30,000 rows."""
    text = (
        f"CREATE STREAM t (user INT64, page INT64) WITH (source = 'files', path = '{folder}/*',"
        f" {source}); SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9,"
        f" privacy_unit_column = user, steps = 4{more})"
        f" page, COUNT(*) AS n FROM t GROUP BY page EMIT EVERY {emit}"
    )
    return sv.sql(text).plan


def arrive(folder, rows, *numbers):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        pq.write_table(rows.slice(30_000 * number, 30_000), folder / f"{number}.parquet")


def followed_to_here(plan, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(run(plan, state=state, secret="ab" * 32, pace=runs.Pace(once=True)))


def test_live_data_are_looked_at_in_their_first_release(rows, tmp_path, monkeypatch):
    """Once, and of later releases nothing: these have settings that the first release chose."""
    arrive(tmp_path / "in", rows, 0, 1)
    counted, honest = [], surveys.taken

    def counting(plan, made, expressions, parts, *rest):
        parts = list(parts)
        counted.append(sum(part.num_rows for part in parts))
        return honest(plan, made, expressions, parts, *rest)

    monkeypatch.setattr(surveys, "taken", counting)
    plan = followed(tmp_path / "in")
    first = followed_to_here(plan, tmp_path / "s")
    assert counted == [30_000]
    said = looks.remembered(plan, tmp_path / "s").options["looked"]["said"]
    assert "first release alone" in said[-1]
    arrive(tmp_path / "in", rows, 2, 3)
    rest = followed_to_here(plan, tmp_path / "s")
    assert counted == [30_000]
    assert {one.step for one in [*first, *rest]} == {1, 2, 3, 4}
    with Ledger.load(tmp_path / "s" / "ledger") as ledger:
        assert ledger.spent().fits(Budget(epsilon=6, delta=1e-9))
        assert ledger.spent() == compile_plan(with_look(plan)).loss
    blind = followed_to_here(followed(tmp_path / "in", ", look_share = 0"), tmp_path / "b")
    assert error(rest[-1].table, rows) < 0.7 * error(blind[-1].table, rows)


def test_a_live_job_that_is_killed_before_its_look_looks_when_it_goes_on(rows, tmp_path):
    """The planted fault would be a second charge, or settings that nobody looked for."""
    arrive(tmp_path / "in", rows, 0)
    plan, state, read = followed(tmp_path / "in"), tmp_path / "s", looks.of_first_release

    def killed(batches):
        next(read(batches))
        raise Killed
        yield

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "of_first_release", killed)
        with pytest.raises(Killed):
            followed_to_here(plan, state)
    [release] = followed_to_here(plan, state)
    assert release.step == 1
    assert (state / "look.json").exists()
    with Ledger.load(state / "ledger") as ledger:
        assert ledger.spent() == compile_plan(with_look(plan)).loss


@pytest.mark.parametrize(
    ("more", "emit", "looks_first"),
    [
        ("", "30000 ROWS", True),
        (", clock = 'wall', start = '2026-01-01'", "INTERVAL 1 HOUR", True),
        (", expected_rows = 6", "30000 ROWS", False),
        (", look_share = 0", "30000 ROWS", False),
        (", public_groups = [1, 2], max_groups_contributed = 1", "30000 ROWS", False),
    ],
)
def test_which_live_queries_look(tmp_path, more, emit, looks_first):
    assert bool(look_share(with_look(followed(tmp_path, more, emit=emit)))) == looks_first


def test_explain_says_which_rows_are_looked_at(tmp_path):
    arrive(tmp_path / "in", pa.table({"user": [1], "page": [1]}), 0)
    told = "it sees the rows of the first release"
    assert told in " ".join(str(explain(followed(tmp_path / "in"))).split())
    whole = followed(tmp_path / "in", source="format = 'parquet'")
    assert told not in " ".join(str(explain(whole)).split())


def test_more_releases_than_a_first_one_tells_of_are_not_looked_at(tmp_path):
    plan = followed(tmp_path)
    many = replace(plan, clock=replace(plan.clock, steps=101))
    assert not look_share(with_look(many))


DAY = 86_400_000_000
DAILY = (
    "CREATE STREAM t (u INT64, k INT64, ts TIMESTAMP) WITH (source = 'files', path = '{}/*',"
    " follow = TRUE, event_time = 'ts'); SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1,"
    " delta = 1e-6, privacy_unit_column = u, privacy_unit_period = INTERVAL 1 DAY, clock = 'wall',"
    " start = '2026-01-01'{}) window_start, k, COUNT(*) AS n FROM TUMBLE(TABLE t, DESCRIPTOR(ts),"
    " size => INTERVAL 1 DAY) GROUP BY window_start, k EMIT EVERY INTERVAL {}"
)


@pytest.mark.parametrize(
    "more", ["", pytest.param(", steps = 400", marks=pytest.mark.slow(landing=True))]
)
def test_live_windows_that_are_periods_are_looked_at_in_the_first(more, tmp_path):
    """Also without an end, and whatever rows of other days are there: 20,000 users of four rows."""
    rng, start = np.random.default_rng(3), 1_767_225_600_000_000
    units = np.repeat(np.arange(20_000), 4)
    errors = {}
    (tmp_path / "in").mkdir()
    for number, day in enumerate((0, 0, -9)):
        half = units[number::2] if day == 0 else np.repeat(units, 9)
        times = start + day * DAY + rng.integers(0, DAY, len(half))
        at = pa.array(times, pa.timestamp("us", "UTC"))
        table = pa.table({"u": half, "k": rng.integers(0, 20, len(half)), "ts": at})
        pq.write_table(table, tmp_path / f"in/{number}.parquet")
    for share in ("", ", look_share = 0"):
        plan = sv.sql(DAILY.format(tmp_path / "in", more + share, "1 DAY")).plan
        state = tmp_path / f"s{share}"
        first = followed_to_here(plan, state)[0]
        numbers = first.table["n"].to_numpy()
        errors[share] = np.abs(numbers - 4_000).sum() + 4_000 * (20 - len(numbers))
        said = looks.remembered(plan, state).options.get("looked", {}).get("options", {})
        assert bool(said) == (not share)
        if said:
            assert said["expected_units"] == pytest.approx(20_000, rel=0.1)
            assert said["expected_rows"] == pytest.approx(4, rel=0.25)
    assert errors[""] < 0.5 * errors[", look_share = 0"]


def test_a_release_of_a_period_tells_of_all_its_releases(tmp_path):
    """Into 24 come rows of one unit on a day; where days are windows, of 24 it tells at all."""
    for emit, more, releases in (
        ("1 DAY", "", (1, 1)),
        ("1 HOUR", "", (24, 24)),
        ("1 HOUR", ", steps = 3", (3, 3)),
        ("1 HOUR", ", steps = 90, lateness = INTERVAL 1 HOUR", (24, 24)),
    ):
        plan = sv.sql(DAILY.format(tmp_path, more, emit)).plan
        assert releases_told(plan) == releases
        whole = replace(plan, window=Window(), clock=replace(plan.clock, steps=90))
        assert releases_told(whole) == (90, 24 if emit == "1 HOUR" else 1)


@pytest.mark.parametrize(
    ("source", "again"),
    [
        ("source = 'kafka', servers = 'none:1', topic = 's'", True),
        ("source = 'nats', servers = 'none:1', stream = 's', subject = 's'", True),
        ("source = 'sse', url = 'http://none/'", False),
    ],
)
def test_rows_that_cannot_be_read_again_are_not_looked_at(source, again):
    text = (
        f"CREATE STREAM s (u BIGINT, k BIGINT) WITH ({source});"
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9, steps = 3,"
        " privacy_unit_column = u, clock = 'wall', start = '2026-01-01'{more})"
        " k, COUNT(*) AS n FROM s GROUP BY k EMIT EVERY INTERVAL 1 HOUR"
    )
    assert bool(look_share(with_look(sv.sql(text.format(more="")).plan))) == again
    if again:
        return
    with pytest.raises(PlanError, match="can be read again"):
        with_look(sv.sql(text.format(more=", look_share = 0.1")).plan)


@pytest.mark.parametrize(
    ("times", "statistics", "columns", "looked_at"),
    [([0, 9], True, ["user", "key"], 2), ([0, 9], False, ["user", "key", "ts"], 2),
     ([0, 10], True, ["user", "key", "ts"], 1), ([-1, 9], True, ["user", "key", "ts"], 1),
     ([None, 9], True, ["user", "key", "ts"], 1)],
)  # fmt: skip
def test_times_are_read_unless_footers_say_that_all_are_within_the_schedule(
    tmp_path, times, statistics, columns, looked_at
):
    table = pa.table(
        {"user": [1, 2], "key": [3, 4], "ts": pa.array(times, pa.timestamp("s", "UTC"))}
    )
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=statistics)
    plan = sv.sql(f"""
        CREATE STREAM clicks WITH (source = 'files', path = '{tmp_path}', event_time = 'ts');
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9,
          privacy_unit_column = user, start = TIMESTAMP '1970-01-01',
          end = TIMESTAMP '1970-01-01 00:00:10') key, COUNT(*) AS n
        FROM clicks GROUP BY key EMIT EVERY INTERVAL 5 SECOND""").plan
    parts = list(looks.rows_of(plan))
    assert parts[0].column_names == columns
    assert sum(part.num_rows for part in parts) == looked_at


def test_no_row_is_no_reason_to_fail(tmp_path):
    empty = pa.table({"user": pa.array([], pa.int64()), "page": pa.array([], pa.int64())})
    assert released(asked(empty), tmp_path / "s").num_rows == 0


def test_a_job_is_charged_for_the_look_and_the_worst_that_may_follow(rows, tmp_path):
    released(asked(rows), tmp_path / "s")
    with Ledger.load(tmp_path / "s" / "ledger") as ledger:
        [charge] = ledger.entries()
    sequel = divided(with_look(asked(rows))).after
    assert charge.loss.tables == ((sequel, 1),)
    assert charge.loss.gaussian == sequel.look**2
    assert charge.loss.fits(Budget(epsilon=6, delta=1e-9))
