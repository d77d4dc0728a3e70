"""Shard state in an object store, over S3's protocol: killed with -9, resumed, same releases.

The store is moto's server (`pip install 'moto[server]'`); where it is missing these tests are
skipped. Through Arrow's own file system (s3://) and through fsspec's (s3a://, with s3fs).
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from streamveil.engines.spark.shards import Shards
from streamveil.runtime.run import run
from streamveil.sql.sql import parse_script
from tests.engines.spark.asked import ASKED, PLAIN
from tests.engines.spark.user import charges, end, killed_and_resumed, noise_of, tables_in

MISSING = [name for name in ("pyspark", "moto", "s3fs") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("ignore:insecure noise"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]  # fmt: skip
BUCKET = "veil"


@pytest.fixture(scope="module")
def store():
    """The address of an empty bucket's server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        made = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        limit = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(made).close()
                break
            except urllib.error.URLError:
                assert time.monotonic() < limit
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(server)


@pytest.mark.parametrize(
    ("case", "storage"),
    [
        (PLAIN, "s3://veil/arrow?scheme=http&region=us-east-1&endpoint_override={host}"),
        (ASKED[1], "s3a://veil/fsspec"),
    ],
    ids=["arrow", "fsspec"],
)
def test_state_in_an_object_store_survives_kill_9(case, storage, store, tmp_path, monkeypatch):
    environment = {
        "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_ENDPOINT_URL": store,
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    case.write(tmp_path / "data")
    (tmp_path / "out").mkdir()
    text = case.script(tmp_path / "data", tmp_path / "out")
    (tmp_path / "q.sql").write_text(text)
    where = storage.format(host=store.removeprefix("http://"))
    killed_and_resumed(tmp_path, [1, 3], "--storage", where, environment=environment)
    plan = replace(parse_script(text).query.plan, sinks=())
    again = {"state": tmp_path / "replay", "noise": noise_of(tmp_path), "insecure": True}
    wanted = list(run(plan, **again))
    found = tables_in(tmp_path / "out")
    assert len(found) == len(wanted) > 3
    made = {(r.window, r.trigger): r.table for r in wanted}
    for table in found:
        assert any(table.equals(other.cast(table.schema)) for other in made.values())
    assert charges(tmp_path) == 1
    assert Shards(where).started()
    assert not (tmp_path / "state" / "shards").exists()
    shutil.rmtree(tmp_path / "state")
