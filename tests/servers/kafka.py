"""Apache Kafka from its published jars: one broker in KRaft mode on loopback.

`python -m tests.servers.kafka FOLDER`: puts the jars into FOLDER, by Maven. Tests use a broker
where STREAMVEIL_KAFKA_JARS names that folder; elsewhere they are skipped and say so.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from streamveil.connectors.kafka_sink import Topic, wait_for
from streamveil.connectors.kafka_topic import ends_of
from tests.servers.proxy import Proxy

VERSION = "3.9.1"
JARS = "STREAMVEIL_KAFKA_JARS"
USER, PASSWORD = "reader", "hidden-word"
BELOW = (20_000, 32_768)  # ports that no system gives to outgoing connections
GIVEN: set[int] = set()
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId>
      <version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


def fetch(folder: Path) -> None:
    """Puts the jars of the broker into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(POM)
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies",
         f"-DoutputDirectory={folder}"],
        check=True,
    )  # fmt: skip


def jars() -> Path | None:
    """Where the jars are, if they are there and Java is."""
    named = os.environ.get(JARS)
    found = None if named is None else Path(named)
    return found if found and shutil.which("java") and list(found.glob("kafka_*.jar")) else None


class Broker:
    """A broker with its files in `home`. It can be stopped, and started again at its address."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(parents=True)
        self.port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{self.port}"
        self.secure, self.near, self.far = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self.authority = self._certified()
        settings = {
            "process.roles": "broker,controller", "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://127.0.0.1:{controller},"
            f"SECURE://{self.secure},NEAR://{self.near}",
            "advertised.listeners": f"PLAINTEXT://{self.servers},SECURE://{self.secure},"
            f"NEAR://{self.far}",  # where a proxy listens
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "NEAR:PLAINTEXT,SECURE:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain"
            f'.PlainLoginModule required user_{USER}="{PASSWORD}";',
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.location": home / "server.pem",
            "controller.listener.names": "CONTROLLER", "log.dirs": home / "log",
            "offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1, "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1,
            "log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 500,
            "broker.heartbeat.interval.ms": 500, "broker.session.timeout.ms": 2000,
        }  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (home / "server.properties").write_text(text)
        self._java("kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c").wait(60)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def _certified(self) -> str:
        """Makes a key and its certificate; the file whose word a client must take for it."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
        now = datetime.now(UTC)
        here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
            .add_extension(here, critical=False).sign(key, hashes.SHA256())
        )  # fmt: skip
        kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        own = key.private_bytes(*kinds, serialization.NoEncryption())
        told = made.public_bytes(serialization.Encoding.PEM)
        (self.home / "server.pem").write_bytes(own + told)
        (self.home / "authority.pem").write_bytes(told)
        return str(self.home / "authority.pem")

    def proxied(self, rate: float) -> Proxy:
        """What stands before it, where it tells clients that it is."""
        return Proxy(int(self.near.split(":")[1]), int(self.far.split(":")[1]), rate)

    def settings(self, password: str = PASSWORD, authority: str | None = None) -> dict[str, str]:
        """What a client of the listener that asks for a password is told."""
        return {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": USER,
            "sasl.password": password, "ssl.ca.location": authority or self.authority,
        }  # fmt: skip

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        fast = (
            "-Xmx512m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
        )  # it runs for a minute or two
        command = ["java", *fast, "-cp", f"{jars()}/*", main, *arguments]
        with (self.home / "broker.log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(self.home / "server.properties")], stdout=log, stderr=log
            )

    def start(self) -> None:
        """Starts the broker, and waits until it answers."""
        from confluent_kafka.admin import AdminClient

        self.process = self._java("kafka.Kafka")
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                client.list_topics(timeout=2)
                return
            except Exception:
                time.sleep(0.2)
        raise TimeoutError((self.home / "broker.log").read_text()[-2000:])

    def stop(self, *, hard: bool = True) -> None:
        """Stops it, by default as a power failure would."""
        assert self.process is not None
        (self.process.kill if hard else self.process.terminate)()
        self.process.wait(30)

    def make(self, topic: str, partitions: int = 1, **settings: object) -> None:
        """Makes a topic."""
        from confluent_kafka.admin import AdminClient, NewTopic

        client = AdminClient({"bootstrap.servers": self.servers})
        config = {name.replace("_", "."): str(value) for name, value in settings.items()}
        (made,) = client.create_topics([NewTopic(topic, partitions, 1, config=config)]).values()
        made.result(30)
        wait_for(Topic(servers=self.servers, topic=topic))

    def read(self, topic: str) -> list[Any]:
        """All messages of committed transactions.

        Brokers answer to a commit before its messages can be read, so the ends of the partitions
        tell when all were: a reader of committed messages first meets the end before them.
        """
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({
            "bootstrap.servers": self.servers, "group.id": str(uuid.uuid4()),
            "isolation.level": "read_committed", "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        })  # fmt: skip
        places = ends_of(Topic(servers=self.servers, topic=topic))
        consumer.assign([TopicPartition(topic, place, 0) for place in places])
        left = {place: end for place, (_, end) in places.items()}
        found: list[Any] = []
        while left:
            (message,) = consumer.consume(1, timeout=30) or [None]
            assert message is not None, "the broker does not answer"
            if not message.error():
                found.append(message)
            elif message.offset() >= left.get(message.partition(), 0):
                left.pop(message.partition(), None)
        consumer.close()
        return found

    def send(self, topic: str, messages: list[tuple[int, bytes]], how: str = "plain") -> None:
        """Sends messages (partition, value): plain, or in a transaction that ends so.

        When it returns they can be read.
        """
        from confluent_kafka import Producer

        more = {} if how == "plain" else {"transactional.id": str(uuid.uuid4())}
        producer = Producer({"bootstrap.servers": self.servers, **more})
        if more:
            producer.init_transactions(30)
            producer.begin_transaction()
        for partition, value in messages:
            producer.produce(topic, value, key=str(len(value)).encode(), partition=partition)
            producer.poll(0)
        producer.flush(30)
        if how == "committed":
            producer.commit_transaction(30)
        elif how == "aborted":
            producer.abort_transaction(30)
        if more:
            self.read(topic)


def free_port() -> int:
    """A port of loopback that nobody listens on, another one each time.

    It lies below those that systems give to outgoing connections: one of them could take it before
    a server does.
    """
    for port in random.SystemRandom().sample(range(*BELOW), 1_000):
        with suppress(OSError), socket.socket() as one:
            if port not in GIVEN:
                one.bind(("127.0.0.1", port))
                GIVEN.add(port)
                return port
    raise RuntimeError(f"no free port of 1,000 tried between {BELOW[0]} and {BELOW[1]}")


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
