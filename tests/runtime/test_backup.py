"""Backups are whole and never run; a fork has noise and a charge of its own."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from click.testing import CliRunner

from streamveil import cli
from streamveil.accounts.ledger import Ledger
from streamveil.commands import common
from streamveil.commands import run as run_command
from streamveil.commands.audit import audit_state
from streamveil.core.accounting import Budget, Neighbours
from streamveil.errors import BudgetError, PlanError, StoreError
from streamveil.runtime import backup as backups
from streamveil.runtime import run as runs
from streamveil.runtime import store as stores
from streamveil.runtime import watch as watches
from streamveil.runtime.archive import Archive
from streamveil.runtime.backup import backup, restore
from streamveil.runtime.fork import boundary, fork
from streamveil.runtime.inspect import inspect
from streamveil.runtime.published import of_state
from streamveil.runtime.run import run
from streamveil.runtime.store import read_header
from streamveil.runtime.verify import verify
from streamveil.sql.sql import Planned, parse_script
from tests.connectors.test_conformance import filled, small_disk
from tests.runtime.test_changed_query import plan, rows, some, told
from tests.schedules import fixed_schedule

assert rows  # the fixture: five days of visits


def test_a_state_goes_on_from_its_backup(tmp_path):
    first = some(run(plan(), state="s"), 4)
    backup("s", "copies/monday")
    with pytest.raises(StoreError, match="is a backup, in which no job runs"):
        run(plan(), state="copies/monday")
    assert all(one.is_whole for one in verify("copies/monday"))
    rest = told(run(plan(), state="s"))
    shutil.rmtree("s")
    restore("copies/monday", "s")
    assert not (Path("s") / "backup.json").exists()
    again = told(run(plan(), state="s"))
    assert again.keys() == rest.keys()
    assert all(again[place].equals(rest[place]) for place in rest), "the same bytes"
    with pytest.raises(StoreError, match="exists already"):
        restore("copies/monday", "s")
    with pytest.raises(StoreError, match="is not a backup"):
        restore("s", "t")
    assert len(first) == 4


def test_a_job_that_died_before_it_wrote_a_release_is_backed_up(monkeypatch):
    """Its state was called damaged, and no backup was made. The log makes the release again."""
    some(run(plan(), state="s"), 2)
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            told(run(plan(), state="s"))
    [words] = [one.words for one in verify("s") if one.part == "archive"]
    assert words == "2 releases; 1 more release from the log when the job goes on"
    backup("s", "copy")
    with pytest.raises(StoreError, match="of a backup: run what `streamveil restore` makes"):
        of_state("copy")
    restore("copy", "t")
    rest = told(run(plan(), state="s"))
    again = told(run(plan(), state="t"))
    assert again.keys() == rest.keys()
    assert all(again[place].equals(rest[place]) for place in rest), "the same bytes"


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "command",
    ["backup both copy", "inspect both", "rekey both --new env:NEW", "ledger show both"],
)
def test_the_folder_of_several_private_answers_is_refused_by_the_names_in_it(command):
    for name in ("a", "b"):
        run(plan(), state=f"both/{name}").close()
    refused = CliRunner().invoke(cli.app, command.split()).exception
    assert isinstance(refused, StoreError)
    assert "several private answers does: a, b.\n  to fix  name one after another" in str(refused)
    assert not Path("copy").exists()


def test_a_backup_of_a_job_that_runs_or_is_damaged_is_refused():
    job = run(plan(), state="s")
    with pytest.raises(StoreError, match="another process"):
        backup("s", "copy")
    job.close()
    path = Path("s") / "ledger"
    path.write_bytes(path.read_bytes().replace(b'"charge"', b'"cherge"'))
    with pytest.raises(StoreError, match=r"ledger: \S+/s/ledger was altered"):
        backup("s", "copy")
    path.unlink()
    with pytest.raises(StoreError, match="a state that lost its own is restored from a backup"):
        backup("s", "copy")
    assert not [one for one in Path().iterdir() if one.name.startswith("copy")]


def test_a_state_that_may_not_be_read_or_cannot_be_named_is_told(monkeypatch):
    some(run(plan(), state="s"), 1)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", refuse)
        with pytest.raises(StoreError, match=r"cannot .*Permission denied(.|\n)*to fix"):
            run(plan(), state="s")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", refuse)
        shown = CliRunner().invoke(cli.app, ["ledger", "show", "s"])
    assert isinstance(shown.exception, StoreError), "it was called a bug"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(StoreError, match=r"'\S+copy.tmp' cannot be made: Perm(.|\n)*another"):
            backup("s", "copy")  # it was said to be in the state
    with pytest.raises(StoreError, match=r"NUL(.|\n)*to fix"):
        run(plan(), state="a\0b")
    told(run(plan(), state="s"))


@pytest.mark.parametrize("way", [backup, restore])
def test_a_full_disk_leaves_no_half_of_a_copy(way, tmp_path):
    """With no room at all, then with ever more."""
    some(run(plan(), state="s"), 4)
    backup("s", "kept")
    home, told = "s" if way is backup else "kept", []
    with small_disk(tmp_path / "small", 2_000):
        while told[-1:] != [""]:
            with filled(tmp_path / "small", 4096 * len(told)):
                try:
                    way(home, tmp_path / "small" / "copy")
                except StoreError as error:
                    told.append(str(error))
                    assert [one.name for one in (tmp_path / "small").iterdir()] == ["filler.tmp"]
                else:
                    told.append("")
        assert len(told) > 4
        assert all("No space left" in words and "to fix" in words for words in told[:-1])
        assert all(one.is_whole for one in verify(tmp_path / "small" / "copy"))


def test_of_two_copies_to_one_place_the_second_is_refused(monkeypatch):
    """The planted fault, until this was mended: one emptied what the other was about to name."""
    some(run(plan(), state="s"), 4)
    backup("s", "kept")
    backup("s", "other")
    sync, told = backups.sync_directory, []

    def meanwhile(path):
        if not told:
            told.append("")
            try:
                restore("other", "copy")
            except StoreError as error:
                told.append(str(error))
        sync(path)

    monkeypatch.setattr(backups, "sync_directory", meanwhile)
    restore("kept", "copy")
    assert "'copy.tmp'" in told[1]
    assert all(one.is_whole for one in verify("copy"))


def test_a_backup_that_gets_its_name_while_a_job_starts_there_is_refused(monkeypatch):
    """The job looked for a backup before it had the lock, and drew the noise of the original."""
    some(run(plan(), state="s"), 4)
    honest = stores.Lock

    def late(directory):
        if directory.name == "copy":
            directory.rmdir()
            backup("s", directory)
        return honest(directory)

    monkeypatch.setattr(stores, "Lock", late)
    with pytest.raises(StoreError, match="is a backup, in which no job runs"):
        run(plan(), state="copy")


def test_a_fork_has_noise_and_a_charge_of_its_own():
    limit = Budget(epsilon=8, delta="1e-6")  # room for three Gaussian mechanisms of epsilon 4
    Ledger.open("clicks.ledger", limit, Neighbours("person")).close()
    some(run(plan(), state="s", ledger="clicks.ledger"), 4)  # in the middle of the second day
    begins = [fork(plan(), "s", name) for name in ("one", "two", "three")]
    assert begins[0] == begins[1] == 1_767_225_600_000_000 + 2 * 86_400_000_000
    original = told(run(plan(), state="s", ledger="clicks.ledger"))
    forks = [told(run(plan(), state=name, ledger="clicks.ledger")) for name in ("one", "two")]
    day = max(window for window, _ in original)
    assert {window for window, _ in forks[0]} == {day}, "the first whole window alone"
    for place in forks[0]:
        noisy = {tuple(found[place]["n"].to_pylist()) for found in (original, *forks)}
        assert len(noisy) > 1, "noise of its own"
    epochs = {read_header(Path(name)).epoch for name in ("s", "one", "two")}
    secrets = {(Path(name) / "secret").read_text() for name in ("s", "one", "two")}
    assert (len(epochs), len(secrets)) == (3, 3)
    with Ledger.load("clicks.ledger") as ledger:
        assert {one.key for one in ledger.entries()} == epochs
    assert told(run(plan(), state="one", ledger="clicks.ledger")).keys() <= forks[0].keys()
    with pytest.raises(BudgetError):
        run(plan(), state="three", ledger="clicks.ledger")


def test_a_fork_whose_start_was_edited_is_refused():
    """Its steps were counted from the edited start, so it ended before the query did."""
    some(run(plan(), state="s"), 4)
    begins = fork(plan(), "s", "one")
    for start in ("2026-01-02", "2026-01-03"):
        with pytest.raises(PlanError, match="start or EMIT EVERY of its query changed"):
            run(plan(start=start), state="one")
    assert plan(start="2026-01-03").clock.start_us == begins, "not even that one"
    with pytest.raises(PlanError, match="start or EMIT EVERY of its query changed"):
        run(plan(every="12 HOUR"), state="one")
    assert told(run(plan(), state="one"))


def test_a_fork_that_was_killed_is_made_again(monkeypatch):
    """It left a folder, which the same command refused as one that exists already."""
    some(run(plan(), state="s"), 4)
    with monkeypatch.context() as killed:
        killed.setattr("os.replace", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fork(plan(), "s", "one")
    assert [path.name for path in Path("one").iterdir()] == ["fork.json.tmp"]
    assert fork(plan(), "s", "one") == fork(plan(), "s", "two")
    with pytest.raises(StoreError, match="exists already"):
        fork(plan(), "s", "one")
    assert told(run(plan(), state="one"))


def test_a_fork_is_watched_by_its_own_calendar(monkeypatch):
    """By that of the first job it was days behind, and not healthy, before it had begun."""
    some(run(plan(), state="s"), 4)
    begins = fork(plan(), "s", "one")
    watched, honest = [], watches.Watch

    def watch(of, *given, **named):
        watched.append(of)
        return honest(of, *given, **named)

    monkeypatch.setattr(watches, "Watch", watch)
    script = SimpleNamespace(named=lambda _: Planned(plan()))
    monkeypatch.setattr(run_command, "read_script", lambda *_: script)
    for state in ("s", "one"):
        done = CliRunner().invoke(cli.app, ["run", "q.sql", "--state", state])
        assert done.exit_code == 0, done.output
    whole, later = (one.clock for one in watched)
    assert whole == plan().clock
    assert later.start_us == begins
    assert whole.due_us(whole.steps) == later.due_us(later.steps)


@pytest.mark.parametrize("place", ["s/inside", "link/inside"])
def test_nothing_is_copied_into_its_own_state(place):
    some(run(plan(), state="s"), 1)
    Path("link").symlink_to("s")
    before = sorted(Path("s").iterdir())
    with pytest.raises(StoreError, match="'inside' would lie in the state directory 's'"):
        backup("s", place)
    with pytest.raises(StoreError, match="would lie in the state"):
        fork(plan(), "s", place)
    assert sorted(Path("s").iterdir()) == before


@pytest.mark.parametrize("number", ["n", "n, SUM(person) AS s"], ids=["rows", "bounds"])
def test_a_job_that_began_with_a_look_is_forked(number):
    looked = plan(options="min_privacy_units_per_group = 2", n=number)
    some(run(looked, state="s"), 4)
    assert (Path("s") / "look.json").exists()
    fork(looked, "s", "one")
    original, other = told(run(looked, state="s")), told(run(looked, state="one"))
    assert other
    assert other.keys() <= original.keys()
    assert any(not other[place].equals(original[place]) for place in other)


def test_a_job_that_ended_before_its_look_is_forked(monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    looked, limit = plan(options="min_privacy_units_per_group = 2"), Budget(epsilon=9, delta="1e-5")
    Ledger.open(Path("l"), limit, Neighbours("person")).close()
    monkeypatch.setattr(runs, "looked", killed)
    with pytest.raises(KeyboardInterrupt):
        run(looked, state="s", ledger="l")
    assert "a ledger that it shares may be" in inspect("s").limit
    assert any("a ledger that it shares may be" in one.words for one in verify("s"))
    assert fork(looked, "s", "one") == looked.clock.start_us


def test_a_job_of_sketches_is_forked_and_a_changing_table_is_not():
    text = """CREATE STREAM visits
        WITH (source = 'files', path = 'rows.parquet', event_time = 'ts');
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6,
          privacy_unit_column = person, max_rows_contributed = 3, start = '2026-01-01',
          end = '2026-01-04') window_start, HEAVY_HITTERS(page, k => 2, text_length => 8) AS n
        FROM TUMBLE(TABLE visits, DESCRIPTOR(ts), size => INTERVAL 1 DAY)
        EMIT EVERY INTERVAL 8 HOUR"""
    found = parse_script(text, {}).query.plan
    first = some(run(found, state="s"), 2)
    fork(found, "s", "one")
    assert min(told(run(found, state="one"))) == (first[0].window + 1, 1)
    with pytest.raises(PlanError, match="a table all records: a fork would lack those"):
        boundary(None, 1)


def test_a_fork_is_forked_and_audited_like_any_job():
    """Whoever restored a fork's backup needs both; the second fork ends where the query does."""
    original = told(run(plan(), state="s"))
    shutil.rmtree("s")
    some(run(plan(), state="s"), 2)
    first = fork(plan(), "s", "one")
    some(run(plan(), state="one"), 2)
    assert fork(plan(), "one", "two") > first
    last = told(run(plan(), state="two"))
    assert last.keys() < original.keys()
    assert max(last) == max(original)
    with Ledger.load(Path("two") / "ledger") as ledger:
        assert [one.horizon for one in ledger.entries()] == [len(last)]
    for state in ("s", "one", "two"):
        audit_state(plan(), Path(state), 1e-4)


def test_a_fork_needs_a_sink_of_its_own_beside_a_job_that_goes_on(monkeypatch):
    """Whichever job comes second to a window is refused: that may be the first job."""
    first = run(plan(sink="out"), state="s")
    some(first, 1)
    monkeypatch.setattr(cli, "read_query", lambda *_: SimpleNamespace(plan=plan(sink="out")))
    done = CliRunner().invoke(cli.app, ["fork", "q.sql", "s", "one"])
    assert done.exit_code == 0
    assert "give out a path or table of its own" in done.output
    with pytest.raises(StoreError, match="fork that has not started"):
        inspect("one")
    assert ["fork that has not started" in one.words for one in verify("one")] == [True]
    told(run(plan(sink="out"), state="one"))
    with pytest.raises(StoreError, match="holds another release of this job"):
        told(run(plan(sink="out"), state="s"))
    fork(plan(sink="out"), "s", "two")
    assert told(run(plan(sink="other"), state="two"))


def test_a_fork_that_would_hold_a_part_of_a_window_is_refused():
    some(run(plan(daily=""), state="s"), 2)
    with pytest.raises(PlanError, match="one window holds the whole stream"):
        fork(plan(daily=""), "s", "f")
    with pytest.raises(StoreError, match="another job: the query changed"):
        fork(plan(), "s", "f")
    assert not Path("f").exists()
    hopping = fixed_schedule(every_us=2, size_us=8, slide_us=4, steps=40)
    with pytest.raises(PlanError, match="a window that has begun"):
        boundary(hopping, 5)
    late = fixed_schedule(every_us=2, size_us=8, lateness_us=4, steps=40)
    with pytest.raises(PlanError, match="a window that has begun"):
        boundary(late, 5)
    with pytest.raises(PlanError, match=r"nothing is left to fork[^$]*give the query a later end"):
        boundary(late, 40)
    for begun in range(1, 30):
        schedule = fixed_schedule(every_us=2, size_us=8, steps=40)
        step = boundary(schedule, begun)
        after = {w for one in range(step + 1, 41) for w in schedule.active(one)}
        assert step >= begun
        assert all(schedule.first_step(window) > step for window in after)


def test_the_commands():
    some(run(plan(), state="s"), 1)
    Path("q.sql").write_text("SELECT 1")

    def told_by(*command):
        done = CliRunner().invoke(cli.app, list(command))
        return done.exit_code, done.output

    assert told_by("backup", "s", "b") == (0, "whole: b\n")
    assert told_by("restore", "b", "t")[0] == 0
    assert told_by("verify", "t")[0] == 0


def test_commands_that_are_told_run_as_they_stand(monkeypatch):
    """They had no quotes, and a backup its name alone."""
    some(run(plan(), state="s"), 4)
    backup("s", "a b")
    script = SimpleNamespace(query=Planned(plan()))
    monkeypatch.setattr(common, "read_script", lambda *_: script)
    forked = CliRunner().invoke(cli.app, ["fork", "my q.sql", "a b", "c d"])
    assert "streamveil run 'my q.sql' --state 'c d'\n" in forked.output
    with pytest.raises(StoreError, match="streamveil run QUERY --state 'c d' starts"):
        inspect("c d")
    with pytest.raises(StoreError, match=rf"streamveil restore '{Path.cwd()}/a b' STATE"):
        run(plan(), state="a b")
