"""Every recipe of docs/how-to runs as it is written, beside the rows of the first page."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.pages import command, play
from tests.servers.postgres import ABSENT, PASSWORD, Postgres, binaries

PAGES = Path(__file__).parents[1] / "docs" / "how-to"
SOURCE = PAGES.parents[1] / "src" / "streamveil"
RECIPES = sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "index")
LONG = {"audit", "choose-epsilon", "dashboard", "tune-bounds"}  # five seconds or more


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder in which the first page was run."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert play((PAGES / "index.md").read_text()) == 3
    return folder


@pytest.mark.filterwarnings("error:AutoDateLocator")
@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in RECIPES],
)
def test_a_recipe_runs(recipe, begun, tmp_path, monkeypatch):
    folder = shutil.copytree(begun, tmp_path / "here")
    monkeypatch.chdir(folder)
    text = (PAGES / f"{recipe}.md").read_text()
    assert play(text) >= (recipe != "spark")
    assert text.splitlines()[2].startswith("You get "), "what the reader gets comes first"
    assert len(text.splitlines()) < 75, "a recipe is one screen"


def test_every_recipe_is_on_the_first_page():
    named = set(re.findall(r"\]\(([\w-]+)\.md\)", (PAGES / "index.md").read_text()))
    assert named == set(RECIPES)
    assert len(RECIPES) > 14


def test_messages_that_are_quoted_are_in_the_code():
    text = (PAGES / "does-not-resume.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    quoted = [message for row in rows for message in re.findall("`([^`]+)`", row)]
    code = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    code = re.sub(r'"\s*f?"', "", code)  # a message may be in several lines
    assert len(quoted) > 6
    assert [message for message in quoted if message not in code] == []


@pytest.mark.skipif(binaries() is None, reason=ABSENT)
def test_the_first_recipe_runs_from_a_broker_into_a_database(tmp_path, monkeypatch):
    kafka, psycopg = pytest.importorskip("confluent_kafka"), pytest.importorskip("psycopg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    broker = kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    before = today - timedelta(days=1)
    for user in range(2_000):
        row = json.dumps({"user_id": user, "url": "/home"}).encode()
        broker.produce("clicks", row, timestamp=int(before.timestamp() * 1000) + user)
    broker.flush()
    [node] = broker.list_topics(timeout=20).brokers.values()
    server = Postgres()
    (text,) = re.findall(
        r"^```sql\n(.*?)^```", (PAGES / "kafka-to-postgres.md").read_text(), re.M | re.S
    )
    for said, here in {
        "broker:9092": f"{node.host}:{node.port}", "2026-12-01": f"{before:%Y-%m-%d}",
        "postgresql://writer@db:5432/stats": server.url, "2027-01-01": f"{today:%Y-%m-%d}",
    }.items():  # fmt: skip
        assert text.count(said) == 1
        text = text.replace(said, here)
    Path("live.sql").write_text(text)
    try:
        command("$ streamveil run live.sql --state live.veil --once")
        command("$ streamveil run live.sql --state live.veil --once")
        with psycopg.connect(server.url) as database:
            found = database.execute("SELECT url, n, n_sd FROM views")
            [(url, n, deviation)] = found.fetchall()
    finally:
        server.remove()
    assert url == "/home"
    assert abs(n - 2_000) < 7 * deviation  # false alarms: below 1e-11
    assert 0 < deviation < 100
