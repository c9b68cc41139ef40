"""A process of its own that talks to servers whose answers are changed, under a memory limit.

    python -m tests.helpers.answers_child KIND FIRST LAST

As :mod:`tests.helpers.garbage_child`, for clients of libraries: the server is a thread that sends
a conversation as a real one would, changed by seed. Every client ends with what it was asked for,
or with a ChangefeedError.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from changefeed.core.errors import ChangefeedError
from changefeed.core.types import LogicalType
from tests.helpers.cloud_answers import (
    BIGQUERY,
    SNOWFLAKE,
    read_bigquery,
    read_snowflake,
    spoilt,
    whole,
)
from tests.helpers.garbage_child import ROOM, mutate

#: Seconds that a server waits for the client to say more.
PATIENCE = 0.1


@contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that ``talk``s to one client after the other; its port."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            try:
                peer, _ = server.accept()
            except TimeoutError:
                continue
            with peer, contextlib.suppress(OSError):
                peer.settimeout(PATIENCE)
                talk(peer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            ended.set()
            thread.join()


# ------------------------------------------------------------------------------------- MySQL


def packets(first: int, *bodies: bytes) -> bytes:
    """Packets numbered from ``first``."""
    return b"".join(
        len(body).to_bytes(3, "little") + bytes([first + i]) + body for i, body in enumerate(bodies)
    )


HANDSHAKE = packets(
    0,
    b"\x0a8.4.0\0" + struct.pack("<I", 7) + b"saltsalt\0" + struct.pack("<H", 0xA20D)
    + b"\xff" + struct.pack("<HH", 2, 0x000A) + b"\x15" + bytes(10) + b"saltsaltsalt\0"
    + b"mysql_native_password\0",
)  # fmt: skip
DONE = b"\0\0\0\2\0\0\0"
END = b"\xfe\0\0\2\0"


def column(name: bytes) -> bytes:
    """The packet that describes a column of text."""
    texts = (b"def", b"", b"t", b"t", name, name)
    kind = struct.pack("<HIBHBxx", 45, 400, 253, 0, 0)
    return b"".join(bytes([len(text)]) + text for text in texts) + b"\x0c" + kind


def rows_of(*rows: tuple[bytes, ...]) -> bytes:
    """The answer to a query."""
    columns = [column(b"c%d" % i) for i in range(len(rows[0]))]
    values = [b"".join(bytes([len(v)]) + v for v in row) for row in rows]
    return packets(1, bytes([len(columns)]), *columns, END, *values, END)


ROWS = rows_of(*[(b"%d" % i, b"word", b"x" * (i % 90)) for i in range(60)])


def read_mysql(answers: Sequence[bytes]) -> int:
    """Login, settings, two queries and a scan; how many rows."""
    from changefeed.sources.mysql.address import Address
    from changefeed.sources.mysql.result import ServerError, read_rows
    from changefeed.sources.mysql.session import connect

    def talk(peer: socket.socket) -> None:
        for text in answers:
            peer.sendall(text)
            if not peer.recv(65_536):
                return

    with serving(talk) as port:
        address = Address.read(f"mysql://u:p@127.0.0.1:{port}?connect_timeout=2")
        session = connect(address)
        try:
            count = len(session.rows("SELECT 1")) + len(session.mappings("SHOW TABLES"))
            answer = session.packets("SELECT * FROM t", 3)
            try:
                with session.explained("read a table"):
                    for block in read_rows(answer, 3):
                        count += len(block[0].starts)
            except ServerError as error:
                raise session.server_error(error, "read a table") from None
        finally:
            session.close()
    return count


def mysql_conversation(settings: int) -> list[bytes]:
    """What a server says first, and then to each message of the client."""
    return [HANDSHAKE, packets(2, DONE), *[packets(1, DONE)] * settings, ROWS, ROWS, ROWS]


#: Statements that a session begins with.
SETTINGS = 6


def spoilt_mysql(rng: random.Random) -> None:
    """One answer is changed."""
    answers = mysql_conversation(SETTINGS)
    # The settings are answered alike: the rest deserves more seeds.
    place = rng.choice([0, 0, 1, 2, *[SETTINGS + 2, SETTINGS + 3, SETTINGS + 4] * 2])
    answers[place] = mutate(rng, [answers[place]])
    read_mysql(answers)


def whole_mysql() -> None:
    """What nobody changed is read."""
    if read_mysql(mysql_conversation(SETTINGS)) != 180:
        raise RuntimeError("a conversation that nobody changed is not read")


# -------------------------------------------------------------------------------------- HTTP


def http_server(answer: Callable[[str, bytes], tuple[int, bytes]]) -> Callable[..., None]:
    """Answers requests one by one: ``answer`` gets a request's first line and its body."""

    def talk(peer: socket.socket) -> None:
        with peer.makefile("rb") as stream:
            while line := stream.readline().decode("latin-1").strip():
                length, host = 0, ""
                while header := stream.readline().strip():
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                    host = value.strip().decode() if name.lower() == b"host" else host
                status, body = answer(line, stream.read(length))
                head = (
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
                    f"X-Elastic-Product: Elasticsearch\r\nLocation: http://{host}/upload/x\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n"
                )
                peer.sendall(head.encode() + body)

    return talk


#: What a value of JSON may be instead.
OTHERS: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**40,
    1.5e300,
    "",
    "x",
    "404",
    [],
    [None],
    [[]],
    {},
    {"a": None},
)


def spoilt_json(rng: random.Random, value: Any) -> Any:
    """One place in the value is another value, or gone."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(sorted(value))
        rest = {n: v for n, v in value.items() if n != name}
        return rest if rng.random() < 0.1 else {**rest, name: spoilt_json(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], spoilt_json(rng, value[place]), *value[place + 1 :]]
    return rng.choice(OTHERS)


def spoilt_body(rng: random.Random, value: Any) -> bytes:
    """The value changed, or its bytes."""
    choice = rng.randrange(6)
    if choice == 0:
        return mutate(rng, [json.dumps(value).encode()])
    if choice == 1:
        return rng.choice((b"", b"<html>", b"[" * 100_000, b"\xff\xfe", b'{"errors":'))
    return json.dumps(spoilt_json(rng, value)).encode()


def cluster_answer(line: str, body: bytes) -> Any:
    """What Elasticsearch says to a request."""
    _, path, _ = line.split()
    place = path.partition("?")[0].rpartition("/")[2]
    operations = body.count(b'{"index"') + body.count(b'{"delete"')
    result = {"status": 429, "error": {"type": "es_rejected", "reason": "queue"}}
    fine = [{"index": {"status": 200}}] * (operations - 1)
    mapping = {"properties": {"id": {"type": "long"}}, "_meta": {"other": {"table": "t"}}}
    node = {"version": "8.15.0", "http": {"max_content_length_in_bytes": 10**8}}
    hit = {"_index": "orders", "_id": "1", "_version": 5, "sort": [1]}
    return {
        "http": {"nodes": {"n": node}},
        "_mapping": {"orders": {"mappings": mapping}},
        "_count": {"count": 0},
        "_bulk": {"errors": operations > 1, "items": [*fine, {"index": result}]},
        "_pit": {"id": "p"},
        "_search": {"pit_id": "p", "hits": {"hits": [hit]}},
    }.get(place, {})


#: The pages of a cluster whose answers are taken apart.
PAGES = {"http", "_mapping", "_count", "_bulk", "_pit", "_search"}


def compact(value: Any) -> bytes:
    """JSON as servers write it."""
    return json.dumps(value, separators=(",", ":")).encode()


def read_cluster(change: Callable[[str, Any], bytes]) -> None:
    """Greeting, index, a sweep, documents."""
    from changefeed.core.schema import Column, TableName, TableSchema
    from sinks.base import SinkContext, Target
    from sinks.elasticsearch.bulk import Bulk
    from sinks.elasticsearch.client import Cluster
    from sinks.elasticsearch.indices import Indices
    from sinks.elasticsearch.options import ElasticsearchSettings
    from sinks.elasticsearch.sweep import delete_below

    def answer(line: str, body: bytes) -> tuple[int, bytes]:
        place = line.split()[1].partition("?")[0].rpartition("/")[2]
        return 200, change(place, cluster_answer(line, body))

    table = TableName("shop", "public", "t")
    target = Target(table, "orders")
    schema = TableSchema(table, (Column("id", "bigint", LogicalType.parse("int64")),), (0,))
    with serving(http_server(answer)) as port:
        settings = ElasticsearchSettings.read(f"elasticsearch://127.0.0.1:{port}/?timeout=2s", {})
        cluster = Cluster(settings)
        bulk = Bulk(cluster, settings, lambda _: None, patience=0)
        context = SinkContext("f", 1, (target,), {}, "n", state="s")
        try:
            bulk.limit(cluster.hello().max_content_bytes)
            Indices(cluster, settings, lambda: bulk, context).prepare(target, schema, None)
            delete_below(cluster, bulk, target, 9)
            document = b'{"index":{"_index":"orders","_id":"1"}}\n{"id":1}\n'
            bulk.add(target, pa.array([document] * 2, pa.binary()))
            bulk.settle()
        finally:
            bulk.close()
            cluster.close()


def spoilt_elasticsearch(rng: random.Random) -> None:
    """The answers of one page are changed."""
    chosen = rng.choice(sorted(PAGES))
    read_cluster(
        lambda place, value: spoilt_body(rng, value) if place == chosen else compact(value)
    )


def whole_elasticsearch() -> None:
    """What nobody changed is read up to the pause that a busy cluster asks for."""
    asked: set[str] = set()

    def unchanged(place: str, value: Any) -> bytes:
        asked.add(place)
        return compact(value)

    try:
        read_cluster(unchanged)
    except ChangefeedError as error:
        if error.code.number == "CF5004" and asked >= PAGES:
            return
        raise
    raise RuntimeError("a cluster that is busy is believed")


def read_registry(body: bytes) -> int:
    """A schema is registered; its number."""
    from changefeed.encoding.registry import RegistrySchema, SchemaRegistry, parse_registry

    with serving(http_server(lambda *_: (200, body))) as port:
        registry = SchemaRegistry(parse_registry(f"http://127.0.0.1:{port}/?timeout=2s"))
        try:
            found = registry.register("s", RegistrySchema("AVRO", '"string"'), "t")
        finally:
            registry.close()
    struct.pack(">bI", 0, found)  # what goes before each message
    return found


REGISTERED = {"id": 7, "version": 1, "schema": '"string"', "schemaType": "AVRO"}


def whole_registry() -> None:
    """What nobody changed is read."""
    if read_registry(json.dumps(REGISTERED).encode()) != 7:
        raise RuntimeError("a registry that nobody changed is not read")


def read_webhook(answer: bytes) -> None:
    """A message is posted to an endpoint."""
    from changefeed.options.sink_config import RetryLimits, WebhookSinkConfig
    from sinks.webhook.client import WebhookClient
    from sinks.webhook.options import WebhookSettings

    def talk(peer: socket.socket) -> None:
        while peer.recv(65_536):
            peer.sendall(answer)

    with serving(talk) as port:
        options = {
            "webhook_sink_config": WebhookSinkConfig(retry=RetryLimits(1, 0.001)),
            "webhook_client_timeout": 1.0,
        }
        settings = WebhookSettings.read(f"webhook-http://127.0.0.1:{port}/", options)
        client = WebhookClient(settings, "f", threading.Event(), patience=2)
        try:
            client.post(b"{}", "k")
        finally:
            client.close()


def native(*columns: tuple[str, str, bytes]) -> bytes:
    """A block of one row in ClickHouse's native form: name, type and data of each column."""
    parts = [bytes([len(columns), 1])]
    for name, kind, data in columns:
        parts += [bytes([len(word)]) + word.encode() for word in (name, kind)] + [data]
    return b"".join(parts)


#: What a server says first: its version, and one of its settings.
VERSION = b"24.8.1.1\tUTC\n"
SETTING = native(
    ("name", "String", b"\x0bmax_threads"),
    ("value", "String", b"\x012"),
    ("readonly", "UInt8", b"\0"),
)


def read_clickhouse(change: Callable[[bytes], bytes]) -> None:
    """The first words with a server."""
    # Before anything else has loaded the client: it says how the client reads.
    from sinks.warehouse.clickhouse.client import Address, ClickHouse

    def answer(line: str, body: bytes) -> tuple[int, bytes]:
        return 200, change(SETTING if b"system.settings" in body else VERSION)

    with serving(http_server(answer)) as port:
        house = ClickHouse(Address("127.0.0.1", port, "u", "p"), "db", patience=1)
        try:
            house.connect(make=False)
        finally:
            house.close()


def spoilt_clickhouse(rng: random.Random) -> None:
    """Bytes of an answer are changed, or it is another page."""
    others = (rng.randbytes(300), b"<html>not found</html>", b"", VERSION)

    def change(page: bytes) -> bytes:
        kind = rng.random()
        if kind < 0.3:
            return rng.choice(others)
        return page if kind < 0.6 else mutate(rng, [page])

    read_clickhouse(change)


TAKEN = b"HTTP/1.1 200 OK\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nok"

READERS: dict[str, tuple[Callable[[random.Random], object], Callable[[], None]]] = {
    "mysql": (spoilt_mysql, whole_mysql),
    "elasticsearch": (spoilt_elasticsearch, whole_elasticsearch),
    "registry": (lambda rng: read_registry(spoilt_body(rng, REGISTERED)), whole_registry),
    "clickhouse": (spoilt_clickhouse, lambda: read_clickhouse(lambda page: page)),
    "webhook": (lambda rng: read_webhook(mutate(rng, [TAKEN])), lambda: read_webhook(TAKEN)),
    "snowflake": (
        lambda rng: spoilt(read_snowflake, SNOWFLAKE, rng),
        lambda: whole(read_snowflake, SNOWFLAKE),
    ),
    "bigquery": (
        lambda rng: spoilt(read_bigquery, BIGQUERY, rng),
        lambda: whole(read_bigquery, BIGQUERY),
    ),
}


def main(kind: str, first: int, last: int) -> int:
    spoilt, whole = READERS[kind]
    whole()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    failed = refused = 0
    for seed in range(first, last):
        try:
            spoilt(random.Random(seed))
        except ChangefeedError:
            refused += 1
        except BaseException:
            failed += 1
            print(f"seed {seed}:", traceback.format_exc(), sep="\n")
    print(f"{last - first} seeds, {refused} refused, {failed} failed")
    return 1 if failed or not refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
