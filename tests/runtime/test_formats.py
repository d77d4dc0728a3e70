"""States of every kept format go on as if nothing had happened, and formats change in one way."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from streamveil import cli, disk
from streamveil.errors import StoreError
from streamveil.runtime import formats, store
from streamveil.runtime.formats import OperatorUpgrade
from streamveil.runtime.inspect import inspect
from streamveil.runtime.rekey import rekey
from streamveil.runtime.run import Pace, engine_for, run
from streamveil.runtime.verify import verify
from streamveil.sql.sql import parse_script
from tests.states import kept

ARCHIVES = sorted(kept.HERE.glob("format-*/*.tar.gz"))
NEW = "a7" * 32
SMALL = kept.QUERIES["group-by"]


def name_of(path):
    return f"{path.parent.name}-{path.name.split('.')[0]}"


def unpacked(folder, format_and_name):
    kept.unpack(kept.HERE / f"{format_and_name}.tar.gz", folder)
    return folder, json.loads((folder / "expected.json").read_text())


def is_long(path):
    """Of the present format, which all other tests write, one is enough in the fast tests."""
    present = path.parent.name == f"format-{formats.current('state')}"
    return present and not path.name.startswith("group-by")


@pytest.mark.parametrize(
    "archive",
    [pytest.param(path, marks=[pytest.mark.slow] * is_long(path)) for path in ARCHIVES],
    ids=name_of,
)
def test_a_kept_state_goes_on(archive, tmp_path):
    kept.unpack(archive, tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    if archive.name.startswith("ledger"):
        assert kept.ledger_facts(tmp_path) == expected
        return
    assert all(one.is_whole for one in verify(tmp_path / "s"))
    assert kept.finish(tmp_path) == expected
    assert all(one.is_whole for one in verify(tmp_path / "s"))
    assert inspect(tmp_path / "s").formats["directory"] == formats.current("state")


def test_every_kind_of_every_format_is_kept():
    newest = formats.current("state")
    wanted = {f"format-{n}-{name}" for n in range(1, newest + 1) for name in kept.MAKERS}
    assert {name_of(path) for path in ARCHIVES} == wanted


def test_versions_are_those_of_their_upgrades():
    plans = [parse_script(text, {}).query.plan for text in kept.QUERIES.values()]
    operators = [engine_for(None, "s")(plan) for plan in plans]
    assert len({one.kind for one in operators}) == 3
    for operator in operators:
        assert operator.version == formats.of_operator(operator.kind)


def state_and_delta(arrays):
    """A made-up change of format: one array is kept with its sign turned."""
    return {name: ~array if array.dtype == np.int64 else array for name, array in arrays.items()}


@pytest.fixture
def next_version(monkeypatch):
    """A group-by that keeps integers turned, and knows how to read the version before."""
    kind = type(engine_for(None, "s")(parse_script(SMALL, {}).query.plan))
    real = {name: getattr(kind, name) for name in ("save", "load", "fold", "apply")}
    turned = state_and_delta
    monkeypatch.setitem(formats.OPERATORS, "group-by", (OperatorUpgrade(turned, turned),))
    monkeypatch.setattr(kind, "save", lambda self, state: turned(real["save"](self, state)))
    monkeypatch.setattr(kind, "load", lambda self, kept: real["load"](self, turned(kept)))
    monkeypatch.setattr(kind, "fold", lambda *a: turned(real["fold"](*a)))
    monkeypatch.setattr(kind, "apply", lambda s, state, d: real["apply"](s, state, turned(d)))
    init = kind.__init__

    def made(self, *args, **more):
        init(self, *args, **more)
        object.__setattr__(self, "version", 2)

    monkeypatch.setattr(kind, "__init__", made)


def goes_on(folder, releases):
    """Some more releases, then a stop."""
    with (
        kept.inside(folder),
        run(kept.plan_of(folder), state="s", secret=kept.SECRET, pace=Pace(max_rows=70)) as job,
    ):
        for _ in range(releases):
            next(job)


def test_an_operators_state_is_upgraded_once(tmp_path, next_version):
    folder, expected = unpacked(tmp_path, "format-1/group-by")
    before = len(list((folder / "s").glob("log-*")))
    goes_on(folder, 2)  # changes in the log of both versions
    assert len(list((folder / "s").glob("log-*"))) == before + 1
    header = store.read_header(folder / "s")
    assert header.identity.operator_version == 2
    assert all(one.is_whole for one in verify(folder / "s"))
    goes_on(folder, 1)
    assert len(list((folder / "s").glob("log-*"))) == before + 1, "it is upgraded once"
    assert kept.finish(folder) == expected


def test_a_planted_upgrade_that_loses_something_is_refused(tmp_path, next_version, monkeypatch):
    folder, _ = unpacked(tmp_path, "format-1/group-by")
    broken = OperatorUpgrade(state_and_delta, lambda arrays: dict(arrays))
    monkeypatch.setitem(formats.OPERATORS, "group-by", (broken,))
    with pytest.raises(Exception):  # noqa: B017, PT011  (whatever meets the turned numbers first)
        goes_on(folder, 1)
    assert store.read_header(folder / "s").identity.operator_version == 1, "nothing was written"


@pytest.mark.parametrize("stop", range(4))
def test_an_upgrade_that_is_cut_short_goes_on(tmp_path, next_version, monkeypatch, stop):
    """The process dies before each of the files that an upgrade writes, and before the next one."""
    folder, expected = unpacked(tmp_path, "format-1/group-by")
    real, left = disk.create, [stop]

    def create(path, buffers):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real(path, buffers)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "create", create)
        try:
            goes_on(folder, 1)
        except KeyboardInterrupt:
            assert stop < 2
    assert all(one.is_whole for one in verify(folder / "s"))
    assert kept.finish(folder) == expected


def test_an_earlier_streamveil_refuses_what_was_upgraded(tmp_path, monkeypatch):
    folder, _ = unpacked(tmp_path, "format-1/group-by")
    goes_on(folder, 1)
    monkeypatch.setitem(formats.NOTES, "state", ())
    with pytest.raises(StoreError, match="format version 3; this streamveil reads up to 1"):
        goes_on(folder, 1)


def test_reading_upgrades_nothing(tmp_path):
    folder, _ = unpacked(tmp_path, "format-1/group-by")
    before = (folder / "s" / "state.json").read_bytes()
    assert inspect(folder / "s").formats["directory"] == 1
    assert all(one.is_whole for one in verify(folder / "s"))
    assert (folder / "s" / "state.json").read_bytes() == before


# ---- another secret


@pytest.fixture
def begun(tmp_path):
    """A state of the present format, whose secret is given from outside."""
    folder, expected = unpacked(tmp_path, f"format-{formats.current('state')}/group-by")
    return folder, expected


def test_another_secret_draws_nothing_anew(begun):
    folder, expected = begun
    check = store.read_header(folder / "s").noise_check
    assert rekey(folder / "s", kept.SECRET, NEW) == "query"
    assert store.read_header(folder / "s").noise_check == check
    with pytest.raises(StoreError, match="the secret is not the one"):
        kept.finish(folder)
    with pytest.raises(StoreError, match="the secret is not the one"):
        rekey(folder / "s", kept.SECRET, NEW)
    rekey(folder / "s", NEW, kept.SECRET)
    assert kept.finish(folder) == expected


def test_a_secret_that_the_state_kept_goes_with_its_file(begun, tmp_path):
    folder, _ = begun
    plan = kept.plan_of(folder)
    with kept.inside(folder):
        with run(plan, state="own", pace=Pace(max_rows=70)) as job:
            next(job)
        shutil.copytree("own", "twin")
        (folder / "new.key").write_text(NEW)
        (folder / "new.key").chmod(0o600)
        command = ["rekey", "own", "--new", f"file:{folder}/new.key"]
        assert CliRunner().invoke(cli.app, command).exit_code == 0
        assert not (folder / "own" / "secret").exists()
        shutil.copy("twin/secret", "own/secret")  # as a crash would leave it
        with run(plan, state="own", secret=NEW, pace=Pace(max_rows=70)) as job:
            rotated = [kept.digest(one) for one in job]
        assert not (folder / "own" / "secret").exists()
        with run(plan, state="twin", pace=Pace(max_rows=70)) as job:
            assert [kept.digest(one) for one in job] == rotated


def test_a_planted_rotation_of_the_noise_key_is_refused(begun):
    """A header whose key was exchanged, as a wrong `rekey` would do it."""
    from streamveil.runtime.sealed_key import sealed

    folder, _ = begun
    header = store.read_header(folder / "s")
    other = sealed(b"\1" * 32, bytes.fromhex(NEW), bytes.fromhex(header.epoch))
    store.write_header(folder / "s", replace(header, key=other))
    with kept.inside(folder), pytest.raises(StoreError, match="the secret is not the one"):
        run(kept.plan_of(folder), state="s", secret=NEW)


def test_a_key_is_bound_to_its_state(begun, tmp_path):
    folder, _ = begun
    with kept.inside(folder):
        run(kept.plan_of(folder), state="other", secret=kept.SECRET).close()
    mine, others = store.read_header(folder / "s"), store.read_header(folder / "other")
    assert mine.key != others.key
    store.write_header(folder / "s", replace(mine, key=others.key))
    with pytest.raises(StoreError, match="the secret is not the one"):
        goes_on(folder, 1)
