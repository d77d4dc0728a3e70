"""Avro and Protobuf by a schema registry: no message stops a job, and none decides for another."""

import base64
import io
import json
import random
import time
from decimal import Decimal

import pyarrow as pa
import pytest

from streamveil.connectors import FAR_US, avro, declared_schema, protobuf
from streamveil.connectors.kafka import KafkaSource
from streamveil.connectors.kafka_topic import Topic
from streamveil.connectors.rejected_rows import MALFORMED, MISFIT
from streamveil.connectors.schema_registry import RegisteredMessages, Registry
from streamveil.engines.spark.kafka import KafkaFeed, KafkaReading
from streamveil.errors import SourceError
from streamveil.plan import Clock
from tests.connectors.test_kafka import needs_broker, rows_of
from tests.servers.registry import USER, schema_registry

fastavro = pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2  # noqa: E402

VISIT = {
    "type": "record", "name": "Visit", "namespace": "shop", "fields": [
        {"name": "u", "type": "long"},
        {"name": "page", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
        {"name": "more", "type": {"type": "array", "items": "Kind"}},
        {"name": "real", "type": "double"}, {"name": "paid", "type": "boolean"},
    ],
}  # fmt: skip
COLUMNS = {
    "u": "INT64", "page": "STRING", "at": "TIMESTAMP", "day": "DATE", "price": "FLOAT64",
    "kind": "STRING", "more": "STRING", "real": "FLOAT64", "paid": "BOOL",
}  # fmt: skip
WANTED = declared_schema(COLUMNS)


def visit(u, **more):
    plain = {
        "u": u, "page": "ü" if u % 2 else None, "at": 1_000 * u, "day": u,
        "price": (100 * u + 25).to_bytes(4, "big"), "kind": "ab"[u % 2], "more": ["a", "b"],
        "real": u / 2, "paid": u % 2 == 0,
    }  # fmt: skip
    return {**plain, **more}


def written(schema, row, number):
    made = io.BytesIO()
    fastavro.schemaless_writer(made, fastavro.parse_schema(avro.bare(schema)), row)
    return b"\0" + number.to_bytes(4, "big") + made.getvalue()


@pytest.fixture
def registry():
    with schema_registry() as made:
        yield made


def reader(registry, compiled=avro.compiled, kind="AVRO", subject="t-value"):
    asked = Registry(registry.url, {"basic.auth.user.info": USER})
    made = RegisteredMessages(asked, subject, kind, compiled)
    made.refresh(["u"])
    return made


def test_every_type_of_avro_becomes_the_declared_one(registry):
    number = registry.register("t-value", json.dumps(VISIT))
    found = reader(registry).read([written(VISIT, visit(u), number) for u in (0, 3)], WANTED)
    assert found.rejected == {}
    first, last = found.rows.to_pylist()
    assert [first["page"], last["page"]] == [None, "ü"]
    assert last["at"].isoformat() == "1970-01-01T00:00:03+00:00"
    assert last["day"].isoformat() == "1970-01-04"
    assert Decimal(last["price"]) == Decimal("3.25")
    assert (last["kind"], json.loads(last["more"])) == ("b", ["a", "b"])
    assert (last["real"], last["paid"], first["paid"]) == (1.5, False, True)


@pytest.mark.parametrize("scale", [0, 2, 38, 10**8])
def test_decimals_keep_all_their_digits(scale):
    numbers = [12345678901234567890123456789012345678, -76543210987654321098765432109876543210, 1]
    made = [avro.of_decimals(scale, [n.to_bytes(16, "big", signed=True)])[0].as_py()
            for n in numbers]  # fmt: skip
    assert [Decimal(text).as_tuple() for text in made] == [
        Decimal(f"{n}E-{scale}").as_tuple() for n in numbers
    ]


def test_decimals_are_written_without_an_exponent():
    assert avro.of_decimals(8, [b"\0", b"\1"]).to_pylist() == ["0.00000000", "0.00000001"]


def test_messages_of_several_schemas_keep_their_order_and_their_meaning(registry):
    old = {"type": "record", "name": "Old", "fields": [
        {"name": "u", "type": "string"}, {"name": "paid", "type": "int"}]}  # fmt: skip
    first = registry.register("t-value", json.dumps(VISIT))
    second = registry.register("t-value", json.dumps(old))
    messages = [
        written(VISIT, visit(u), first) if u % 3 else
        written(old, {"u": f"x{u}" if u == 6 else str(u), "paid": 1}, second) for u in range(9)
    ]  # fmt: skip
    source = reader(registry)
    whole = source.read(messages, WANTED)
    assert whole.rows["u"].to_pylist() == [0, 1, 2, 3, 4, 5, None, 7, 8]
    assert whole.rows["real"].null_count == 3, "the old schema has no such field"
    assert whole.misfit.tolist() == [6]
    alone = pa.concat_tables([source.read([one], WANTED).rows for one in messages])
    assert alone.equals(whole.rows), "how messages are cut into blocks changes no row"


def test_a_schema_that_comes_later_is_known_when_its_messages_are_read(registry):
    first = registry.register("t-value", json.dumps(VISIT))
    source = reader(registry)
    later = {**VISIT, "fields": [*VISIT["fields"], {"name": "late", "type": "int"}]}
    second = registry.register("t-value", json.dumps(later))
    message = written(later, {**visit(1), "late": 7}, second)
    assert source.read([message], WANTED).rejected == {MALFORMED: 1}
    registry.subjects["t-value"][1]["gone"] = True  # deleted, and still asked for
    source.refresh(["late"])
    wanted = declared_schema({"late": "INT64"})
    assert source.read([message], wanted).rows["late"].to_pylist() == [7]
    assert reader(registry).read([written(VISIT, visit(1), first)], WANTED).rejected == {}
    registry.asked.clear()
    source.read([b"\0\0\0\0\1x"], WANTED)
    assert registry.asked == [], "no message makes anybody ask"


ENDLESS = {"type": "record", "name": "N", "fields": [{"name": "u", "type": ["null", "N"]}]}
NOTHING = {"type": "record", "name": "E", "fields": []}


@pytest.mark.parametrize(("schema", "words"), [
    (ENDLESS, "contains itself"),
    ({**VISIT, "fields": [{"name": "u", "type": {"type": "array", "items": "null"}}]}, "no bytes"),
    ({**VISIT, "fields": [{"name": "u", "type": {"type": "array", "items": NOTHING}}]}, "no bytes"),
    ({**VISIT, "fields": [{"name": "u", "type": NOTHING}, {"name": "v", "type": "E"}]}, "again"),
    ("string", "must be a record"),
])  # fmt: skip
def test_schemas_that_let_a_message_be_endless_are_refused(registry, schema, words):
    registry.register("t-value", json.dumps(schema))
    with pytest.raises(SourceError, match=rf"{words}(.|\n)*to fix"):
        reader(registry)


def test_the_least_bytes_of_a_value_follow_from_its_type():
    fixed = {"type": "fixed", "name": "shop.F", "size": 5}
    made = {"type": "record", "name": "shop.R", "fields": [
        {"name": "a", "type": fixed}, {"name": "b", "type": "F"}, {"name": "c", "type": "shop.F"},
        {"name": "d", "type": ["double", "null"]}, {"name": "e", "type": "null"},
        {"name": "f", "type": {"type": "map", "values": "null"}},
        {"name": "g", "type": {"type": "array", "items": "F"}},
        {"name": "h", "type": {"type": "enum", "name": "F bytes", "symbols": ["A"]}},
    ]}  # fmt: skip
    named = avro.NamedTypes()
    assert avro.require_finite(made, named, ()) == 5 + 5 + 5 + 1 + 0 + 1 + 1 + 1
    assert named.least == {"F": 5, "R": 19, "F bytes": 1}
    assert avro.resolved("shop.F", named) == avro.resolved("other.F", named) == fixed
    with pytest.raises(SourceError, match="two types called 'F'"):
        avro.require_finite({**fixed, "size": 6}, named, ())


@pytest.mark.parametrize("schema", [
    "null", '{"type": "record", "name": "R"', '{"type": "record", "fields": []}',
    '{"type": "record", "name": "R", "fields": [{"name": "u", "type": "of-nobody"}]}',
    '{"type": "record", "name": "R", "fields": [{"name": "u", "type": {"type": "enum", "name":'
    ' "E", "symbols": ["A"], "default": "secret"}}]}',
    json.dumps({**VISIT, "fields": [{"name": "u", "type": "int", "more": [[]] * 9}, 5]}),
])  # fmt: skip
def test_what_is_no_schema_is_refused_in_words(registry, schema):
    registry.register("t-value", schema)
    with pytest.raises(SourceError, match="schema registry says of 't-value' cannot be read") as no:
        reader(registry)
    assert "secret" not in str(no.value)


def test_a_schema_that_names_types_again_and_again_is_read_at_once(registry):
    """Each type was read as often as it is reached: forty of them for ever."""
    made = {"type": "record", "name": "R0", "fields": [{"name": "u", "type": "long"}]}
    for level in range(1, 40):
        fields = [{"name": "u", "type": made}, {"name": "again", "type": f"R{level - 1}"}]
        made = {"type": "record", "name": f"R{level}", "fields": fields}
    registry.register("t-value", json.dumps(made))
    assert reader(registry).read([b"\0\0\0\0\1x"], declared_schema({})).rows.num_rows == 0


def file_of(package="shop"):
    """Message Visit: u, name, at, kind, inner and the rest, by hand."""
    file = descriptor_pb2.FileDescriptorProto(
        name="visit.proto", package=package, syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )  # fmt: skip
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="PAID", number=1)
    made = file.message_type.add(name="Visit")
    kinds = descriptor_pb2.FieldDescriptorProto
    made.oneof_decl.add(name="_page")
    for number, (name, kind, more) in enumerate([
        ("u", kinds.TYPE_UINT64, {}), ("page", kinds.TYPE_STRING, {"oneof_index": 0,
                                                                   "proto3_optional": True}),
        ("at", kinds.TYPE_MESSAGE, {"type_name": ".google.protobuf.Timestamp"}),
        ("kind", kinds.TYPE_ENUM, {"type_name": f".{package}.Kind"}),
        ("more", kinds.TYPE_SINT32, {"label": kinds.LABEL_REPEATED}),
        ("real", kinds.TYPE_FLOAT, {}), ("paid", kinds.TYPE_BOOL, {}),
    ], start=1):  # fmt: skip
        made.field.add(name=name, number=number, type=kind,
                       **{"label": kinds.LABEL_OPTIONAL, **more})  # fmt: skip
    file.message_type.add(name="Other")
    return file


@pytest.fixture
def made(registry):
    """What makes messages, and the reader of them."""
    file = file_of()
    text = base64.b64encode(file.SerializeToString()).decode()
    number = registry.register("t-value", text, "PROTOBUF")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Visit"))
    head = b"\0" + number.to_bytes(4, "big")
    return kind, head, reader(registry, protobuf.compiled, "PROTOBUF")


PROTOBUF = declared_schema({
    "u": "INT64", "page": "STRING", "at": "TIMESTAMP", "kind": "STRING", "more": "STRING",
    "real": "FLOAT64", "paid": "BOOL",
})  # fmt: skip


def test_every_type_of_protobuf_becomes_the_declared_one(made):
    kind, head, source = made
    one = kind(u=7, page="ü", kind=1, more=[1, -2], real=0.5, paid=True)
    one.at.seconds, one.at.nanos = 3, 5_000
    far = kind(u=1 << 63)
    far.at.seconds = 1 << 62
    messages = [head + b"\0" + row.SerializeToString() for row in (one, kind(), far)]
    messages += [head + b"\2\2" + kind(u=1).SerializeToString()]  # another message of the file
    found = source.read(messages, PROTOBUF)
    assert found.rows["at"].cast(pa.int64())[2].as_py() == FAR_US
    full, empty = found.rows.slice(0, 2).to_pylist()
    assert full["at"].isoformat() == "1970-01-01T00:00:03.000005+00:00"
    assert (full["u"], full["page"], full["kind"], full["more"]) == (7, "ü", "PAID", "[1, -2]")
    assert (empty["u"], empty["page"], empty["at"], empty["kind"]) == (0, None, None, "UNKNOWN")
    assert found.rows["u"][2].as_py() is None, "it does not fit 64 bits with a sign"
    assert found.rejected == {MISFIT: 1, MALFORMED: 1}
    assert (found.malformed.tolist(), found.misfit.tolist()) == ([3], [2])


def test_a_field_that_no_text_can_hold_is_null_and_its_message_is_a_row(registry):
    """An `Any` of a type of somebody else's, one extension, and bytes in the place of text."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="o.proto", syntax="proto2", dependency=["google/protobuf/any.proto"]
    )
    one = file.message_type.add(name="One")
    one.extension_range.add(start=10, end=11)
    one.field.add(name="u", number=1, type=kinds.TYPE_INT64, label=1)
    one.field.add(
        name="a", number=2, type=kinds.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Any"
    )
    one.field.add(name="more", number=3, type=kinds.TYPE_INT32, label=3)
    one.field.add(name="page", number=4, type=kinds.TYPE_STRING, label=1)
    file.extension.add(name="x", number=10, type=kinds.TYPE_BOOL, label=1, extendee=".One")
    text = base64.b64encode(file.SerializeToString()).decode()
    number = registry.register("t-value", text, "PROTOBUF")
    message = (
        b"\0" + number.to_bytes(4, "big") + b"\0" + b"\x08\x07\x12\x05\x0a\x03u/N\x18\x02\x50\x01"
        b"\x22\x01\xff"
    )
    wanted = declared_schema({"u": "INT64", "a": "STRING", "more": "STRING", "page": "STRING"})
    found = reader(registry, protobuf.compiled, "PROTOBUF").read([message], wanted)
    assert found.rows.to_pylist() == [{"u": 7, "a": None, "more": "[2]", "page": None}]
    assert found.rejected == {MISFIT: 2}


def test_a_map_is_one_text_in_every_process(registry):
    file = file_of()
    kinds = descriptor_pb2.FieldDescriptorProto
    entry = file.message_type[0].nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(name=name, number=number, type=kinds.TYPE_STRING, label=1)
    file.message_type[0].field.add(
        name="tags", number=9, type=kinds.TYPE_MESSAGE, label=3, type_name=".shop.Visit.TagsEntry"
    )
    number = registry.register("t-value", base64.b64encode(file.SerializeToString()).decode(),
                               "PROTOBUF")  # fmt: skip
    head = b"\0" + number.to_bytes(4, "big") + b"\0"
    tags = [b"\x4a\x06\x0a\x01%c\x12\x01x" % letter for letter in b"abcdefghijklmnop"]
    source = reader(registry, protobuf.compiled, "PROTOBUF")
    messages = [head + b"".join(some) for some in (tags, tags[::-1])]
    first, second = source.read(messages, declared_schema({"tags": "STRING"})).rows["tags"]
    assert first == second
    assert first.as_py() == json.dumps({letter: "x" for letter in "abcdefghijklmnop"})


def test_a_decimal_that_no_type_holds_is_counted(registry):
    price = next(one["type"] for one in VISIT["fields"] if one["name"] == "price")
    schema = {"type": "record", "name": "R", "fields": [{"name": "u", "type": price}]}
    number = registry.register("t-value", json.dumps(schema))
    messages = [written(schema, {"u": one.to_bytes(17, "big")}, number) for one in (1 << 127, 125)]
    for kind, value in (("FLOAT64", 1.25), ("STRING", "1.25")):
        found = reader(registry).read(messages, declared_schema({"u": kind}))
        assert (found.rows["u"].to_pylist(), found.rejected) == ([None, value], {MISFIT: 1})


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_no_bytes_stop_a_reader(registry, made, kind):
    drawn = random.Random(5)
    if kind == "avro":
        number = registry.register("u-value", json.dumps(VISIT))
        source = reader(registry, subject="u-value")
        good, wanted = written(VISIT, visit(9), number), WANTED
    else:
        one, head, source = made
        good, wanted = head + b"\0" + one(u=9, page="abc", more=[3]).SerializeToString(), PROTOBUF
    messages = [b"", b"\0", good[:5], good]
    for _ in range(300):
        changed = bytearray(good)
        for _ in range(drawn.randint(1, 6)):
            byte = drawn.choice([0, 1, 127, 128, 255, drawn.randrange(256)])
            changed[drawn.randrange(5, len(changed))] = byte
        cut = drawn.randrange(5, len(changed) + 1)
        messages.append(bytes(changed if drawn.random() < 0.7 else changed[:cut]))
    found = source.read(messages, wanted)
    assert found.rows.num_rows + len(found.malformed) == len(messages)
    assert 0 < found.rejected[MALFORMED] < len(messages)
    alone = [source.read([one], wanted).rows for one in messages]
    assert pa.concat_tables(alone).equals(found.rows)


def test_a_registry_that_refuses_is_named_and_no_word_of_its_settings(registry, tmp_path):
    with pytest.raises(SourceError, match=r"answers 401(.|\n)*to fix") as caught:
        Registry(registry.url, {"basic.auth.user.info": "reader:wrong-word"}).versions("t-value")
    assert "wrong-word" not in str(caught.value)
    known = Registry(registry.url, {"basic.auth.user.info": USER})
    with pytest.raises(SourceError, match="answers 404"):
        known.versions("t-value")
    for address in ("http://me:hidden-word@registry", "registry:8081", "file:///etc/passwd"):
        with pytest.raises(SourceError, match=r"without a password(.|\n)*to fix") as caught:
            Registry(address)
        assert "hidden-word" not in str(caught.value)
    with pytest.raises(SourceError, match="not known"):
        Registry(registry.url, {"basic.user": "x"})
    registry.register("t-value", "{}", "JSON")
    with pytest.raises(SourceError, match="is JSON, not AVRO"):
        reader(registry)


@pytest.mark.parametrize("options", [
    {"format": "avro"}, {"registry": "http://r"}, {"subject": "s"},
    {"format": "xml", "registry": "http://r"},
])  # fmt: skip
def test_options_that_belong_together_are_asked_for(options):
    with pytest.raises(SourceError, match="to fix"):
        KafkaSource("x:1", "t", {"u": "INT64"}, **options)


@needs_broker
def test_a_topic_of_avro_with_headers_is_read_from_every_position(
    broker, topic, registry, tmp_path
):
    from confluent_kafka import Producer

    number = registry.register(f"{topic}-value", json.dumps(VISIT))
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps({"schema.registry.basic.auth.user.info": USER}))
    producer = Producer({"bootstrap.servers": broker.servers})
    for u in range(12):
        headers = [("tenant", b"old"), ("tenant", b"%d" % u if u % 4 else b"\xff")]
        producer.produce(topic, written(VISIT, visit(u), number), partition=u % 2, headers=headers)
    producer.produce(topic, b"{}", partition=1)
    producer.flush(30)
    columns = {**COLUMNS, "kafka_header_tenant": "INT64", "kafka_header_none": "STRING"}
    asked = {"servers": broker.servers, "topic": topic, "columns": columns, "format": "avro",
             "config": str(config), "registry": registry.url}  # fmt: skip
    source = KafkaSource(**asked)
    chunks = list(source.read(None, 5))
    rows = rows_of(chunks)
    assert sorted(row["u"] for row in rows) == list(range(12))
    assert all(row["kafka_header_tenant"] == (row["u"] if row["u"] % 4 else None) for row in rows)
    assert {row["kafka_header_none"] for row in rows} == {None}
    lost = [chunk.rejected for chunk in chunks]
    assert sum(one.get(MALFORMED, 0) for one in lost) == 1
    assert sum(one.get(MISFIT, 0) for one in lost) == 3
    for at, chunk in enumerate(chunks):
        assert rows_of(source.read(chunk.position, 3)) == rows_of(chunks[at + 1 :])
    feed = KafkaFeed(Topic.of(asked), Clock(kind="wall", every=1, start_us=0))
    seen = feed.seen(feed.nothing(), time.time() + 60)
    reading = KafkaReading(feed.topic, source.schema())  # what a task of Spark's does
    parts = [reading.rows(split, 1) for some in feed.splits({}, seen, 1) for split in some]
    assert pa.concat_tables(part.table for part in parts).to_pylist() == rows
    assert sum(part.rejected.get(MALFORMED, 0) for part in parts) == 1
