"""One broker for all tests of Kafka."""

import pytest

from tests.servers import kafka


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    made = kafka.Broker(tmp_path_factory.mktemp("kafka") / "broker")
    yield made
    made.stop()


@pytest.fixture
def topic(broker, request):
    name = request.node.name.translate(str.maketrans("[] ", "...")).lower()[:80]
    broker.make(name, 2)
    return name
