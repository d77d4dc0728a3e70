"""The page in a real browser: charts are drawn, at every width, and follow a job that goes on."""

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.core.noise import SeededNoise
from streamveil.dashboard import page, serve, write
from streamveil.errors import PlanError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
HOSTILE = "<img src=x onerror=alert(1)>"
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def query(steps=8):
    n = 4000
    rows = pa.table({
        "user": np.arange(n) % 900, "ts": pa.array(np.arange(n) * 600_000, pa.timestamp("us")),
        "page": [HOSTILE if i % 3 else f"page {i % 5}" for i in range(n)],
    })  # fmt: skip
    return (
        sv.memory(rows, event_time="ts", name="clicks").protect("user", per="1 hour")
        .window(sv.tumble("20 minutes")).group_by("page").agg(n=sv.count()).bound(max_rows=4)
        .release(every="5 minutes", start="1970-01-01", steps=steps,
                 budget=sv.Budget(epsilon=20, delta=1e-3), name="a & b")
    )  # fmt: skip


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "s"
    assert list(query().run(state=str(folder), noise=SeededNoise(1), insecure=True))
    return folder


def drawn(url, folder, width=1000, picture=None):
    """The document after its script has run, and what the console said."""
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={folder}/profile", f"--window-size={width},3000",
        "--enable-logging=stderr", "--virtual-time-budget=3000",
        *([f"--screenshot={picture}"] if picture else ["--dump-dom"]), url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@browser
@pytest.mark.parametrize("width", [500, 1900])
def test_every_chart_is_drawn_and_none_is_wider_than_the_window(state, tmp_path, width):
    """A phone of 420 pixels is looked at by hand: a window is never narrower than 500."""
    path = write(state, tmp_path / "d.html")
    text, console = drawn(path.as_uri(), tmp_path, width)
    assert console == []
    boxes = re.findall(r'data-draw="(\w+)"[^>]*>(<svg)?', text)
    assert {kind for kind, _ in boxes} == {"panel", "rows"}
    assert all(svg for _, svg in boxes)
    assert 'data-overflow="0"' in text
    assert "<img" not in text  # a key that looks like markup stays text


@browser
def test_shares_and_short_names_are_written_as_they_are(tmp_path):
    rows = {"user": list(range(3000)), "page": ["a", "b", "c"] * 1000, "bought": [0.0, 1.0] * 1500}
    asked_for = (
        sv.memory(rows).protect("user").group_by("page", keys=sv.public(["a", "b", "c"]))
        .agg(share=sv.avg("bought", bounds=(0, 1))).bound(max_rows=1)
        .release(budget=sv.Budget(epsilon=4, delta=1e-6))
    )  # fmt: skip
    assert list(asked_for.run(str(tmp_path / "s"), noise=SeededNoise(1), insecure=True))
    text, _ = drawn(write(tmp_path / "s", tmp_path / "d.html").as_uri(), tmp_path)
    written = set(re.findall(r"<text[^>]*>([^<]+)</text>", text))
    assert {"a", "b", "c"} <= written
    assert "…" not in written
    assert any(re.fullmatch(r"0\.\d+", one) for one in written)
    assert not any(re.fullmatch(r"[\d.]+m", one) for one in written), "350m is no share"


@browser
@pytest.mark.skipif("STREAMVEIL_PICTURES" not in os.environ, reason="pictures are asked for")
def test_pictures_for_people(state, tmp_path):
    for width in (500, 1900):
        picture = f"{os.environ['STREAMVEIL_PICTURES']}/dashboard-{width}.png"
        drawn(write(state, tmp_path / "d.html").as_uri(), tmp_path, width, picture)


@contextmanager
def served(*arguments, **options):
    with serve.server_of(*arguments, **options) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def asked(server, path="", **headers):
    request = urllib.request.Request(server.url + path, headers=headers)
    with urllib.request.urlopen(request) as answer:
        return answer.status, answer.headers, answer.read().decode()


def test_a_served_page_follows_the_job(tmp_path):
    folder, key = str(tmp_path / "s"), {"noise": SeededNoise(1), "insecure": True}
    with served(folder) as server:
        assert serve.NOTHING_NOW in asked(server)[2]
        releases = query().run(state=folder, **key)
        next(releases)
        status, headers, text = asked(server)
        assert (status, 'data-live="5"' in text) == (200, True)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        first = json.loads(text.partition('id="view">')[2].partition("</script>")[0])
        with pytest.raises(urllib.error.HTTPError, match="304"):
            asked(server, f"view.json?since={first['version']}")
        next(releases)
        later = json.loads(asked(server, f"view.json?since={first['version']}")[2])
        assert len(later["charts"][0]["x"]) == len(first["charts"][0]["x"]) + 1
        assert "a &amp; b" in later["body"]
        releases.close()


@pytest.mark.parametrize(
    ("lost", "why"), [("", "there is no folder"), ("ledger", "was left as it is")]
)
def test_a_page_says_why_it_cannot_be_read(lost, why, state, tmp_path):
    """A state that was moved or damaged passed for one that had released nothing yet."""
    home = shutil.copytree(state, tmp_path / "<b>")
    with served(home) as server:
        assert serve.NOTHING_NOW not in asked(server)[2]
        (home / lost).rename(tmp_path / "elsewhere")
        if lost:
            (home / lost).write_text("no ledger")
        text = asked(server)[2]
        assert serve.NOTHING_NOW in text
        assert why in text
        assert "<b>" not in text
        with pytest.raises(urllib.error.HTTPError, match="503"):
            asked(server, "view.json")


def requests():
    """The threads that answer readers."""
    return {one for one in threading.enumerate() if "process_request" in one.name}


def test_a_reader_that_goes_away_or_says_nothing_is_let_go(state, monkeypatch, capfd):
    monkeypatch.setattr(serve.Handler, "timeout", 0.2)
    with served(state) as server:
        before, place = set(threading.enumerate()), server.server_address[:2]
        with socket.create_connection(place) as silent:
            assert silent.recv(1) == b""  # the server has closed it
        with socket.create_connection(place) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        until = time.monotonic() + 30
        while (left := requests() - before) and time.monotonic() < until:
            time.sleep(0.01)
        assert not left
    assert capfd.readouterr().err == ""


@browser
def test_a_served_page_is_drawn_under_its_policy(state, tmp_path):
    with served(state) as server:
        text, console = drawn(server.url, tmp_path)
    assert console == []
    assert text.count("<svg") > 3


def test_nothing_else_is_served_and_no_other_host_is_let_in(state):
    with served(state) as server:
        assert server.server_address[0] == "127.0.0.1"
        for path in ("../secret", "ledger/ledger", "static/view.js", "%2e%2e/secret", "log"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                asked(server, path)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            asked(server, Host="elsewhere.example:80")  # as a page of elsewhere would ask
        for name in page.SCRIPTS:
            assert asked(server, name)[0] == 200
        with pytest.raises(PlanError, match="another --port"):
            serve.server_of(state, port=server.server_address[1])
