"""A kept state goes on as if nothing had happened; a state of another format is refused."""

import json
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

from streamveil import cli
from streamveil.errors import StoreError
from streamveil.runtime import formats, store
from streamveil.runtime.rekey import rekey
from streamveil.runtime.run import Pace, run
from streamveil.runtime.verify import verify
from tests.states import kept

FORMAT = kept.HERE / f"format-{formats.VERSION}"
NEW = "a7" * 32


def unpacked(folder, name):
    kept.unpack(FORMAT / f"{name}.tar.gz", folder)
    return folder, json.loads((folder / "expected.json").read_text())


# one is enough in the fast tests, which all write this format
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "group-by")) for name in kept.MAKERS],
)
def test_a_kept_state_goes_on(name, tmp_path):
    folder, expected = unpacked(tmp_path, name)
    if name == "ledger":
        assert kept.ledger_facts(folder) == expected
        return
    assert all(one.is_whole for one in verify(folder / "s"))
    assert kept.finish(folder) == expected
    assert all(one.is_whole for one in verify(folder / "s"))


@pytest.fixture
def begun(tmp_path):
    """A state whose secret is given from outside."""
    return unpacked(tmp_path, "group-by")


def goes_on(folder, releases):
    """Some more releases, then a stop."""
    with (
        kept.inside(folder),
        run(kept.plan_of(folder), state="s", secret=kept.SECRET, pace=Pace(max_rows=70)) as job,
    ):
        for _ in range(releases):
            next(job)


def test_a_state_of_another_format_is_refused_and_left_as_it_is(begun, monkeypatch):
    folder, _ = begun
    before = {path.name: path.read_bytes() for path in (folder / "s").iterdir() if path.is_file()}
    monkeypatch.setattr(formats, "VERSION", 2)
    with pytest.raises(StoreError, match="format version 1; this streamveil reads version 2"):
        goes_on(folder, 1)
    now = {path.name: path.read_bytes() for path in (folder / "s").iterdir() if path.is_file()}
    assert now == before


# ---- another secret


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
        with pytest.raises(StoreError, match="or was last given by `rekey`"):
            run(plan, state="own")
        with pytest.raises(StoreError, match="a state that keeps its own give none"):
            run(plan, state="twin", secret=NEW)
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
