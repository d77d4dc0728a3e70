"""A topic of Kafka, counted privately every second, and a page that shows it: run.py --help."""

import json
import shutil
import time
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import click
import matplotlib.pyplot as plt
from click.testing import CliRunner
from confluent_kafka import Producer

import streamveil as sv
from streamveil import cli
from streamveil.demo import departures

QUERY = Path(__file__).with_name("live.sql").resolve()
LOCAL = "none here: a broker inside this process, for a first look"
LEAD = timedelta(seconds=10)  # in which the job gets ready


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/live")
@click.option("--seconds", default=20)
@click.option("--servers", default=LOCAL)
def main(out: Path, seconds: int, servers: str) -> None:
    """Sends flights into a topic while a job counts them; draws, and makes the page."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    inside = {"test.mock.num.brokers": 1} if servers == LOCAL else {}
    producer = Producer({"bootstrap.servers": "none" if inside else servers, **inside})
    if inside:
        [node] = producer.list_topics(timeout=20).brokers.values()
        servers = f"{node.host}:{node.port}"
    flights = departures().select(["plane", "destination"]).slice(0, 3_000 * seconds).to_pylist()
    begin = datetime.now(UTC).replace(microsecond=0) + LEAD
    end = begin + timedelta(seconds=seconds)
    text = QUERY.read_text().format(servers=servers, start=begin, end=end)
    producer.produce("flights", json.dumps({"plane": "", "destination": ""}).encode())
    producer.flush()  # the topic is there
    sender = Thread(target=send, args=(producer, flights, begin, seconds))
    sender.start()
    with chdir(out):
        answers = sv.sql(text).answer("live.veil")
        answers.plot("n").savefig("live.png", dpi=80)
        plt.close("all")
        CliRunner().invoke(cli.app, ["dashboard", "live.veil", "--out", "live.html"])
    sender.join()
    print(f"look at {out / 'live.html'}")


def send(producer: Producer, flights: list[dict], begin: datetime, seconds: int) -> None:
    """Sends flights from `begin` on, 500 at a time and 2,500 in a second."""
    time.sleep(max(0, (begin - datetime.now(UTC)).total_seconds()))
    for first in range(0, min(len(flights), 2_500 * seconds), 500):
        for flight in flights[first : first + 500]:
            producer.produce("flights", json.dumps(flight).encode())
        producer.flush()
        time.sleep(0.2)


if __name__ == "__main__":
    main()
