"""The list of what a sink must do, with every row delivered by a task of Spark.

Two ways lead there, that of a scan and that of a backlog in lanes. Each case runs by the node, too:
the bytes must be the same.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.conformance import CASES, Case, Harness, run_case
from changefeed_testing.sinks.feed import FeedDouble, Write, at, delete, put
from changefeed_testing.sinks.readers import file_bytes, visible_files
from changefeed_testing.sinks.validators import (
    BeforeAfterValidator,
    FingerprintValidator,
    OrderValidator,
    ResolvedValidator,
    validate,
)
from tests.conformance.test_sinks import FilesHarness, KafkaHarness
from tests.conformance.test_sinks_elasticsearch import Harness as ElasticsearchHarness
from tests.conformance.test_sinks_places import SECRET, FolderHarness
from tests.conformance.test_sinks_stores import StoreHarness
from tests.conformance.test_sinks_webhook import SECRET as WEBHOOK_SECRET
from tests.conformance.test_sinks_webhook import WebhookHarness
from tests.helpers.spark_sinks import (
    TASKS,
    SparkHarness,
    SparkSink,
    Trouble,
    Way,
    as_lanes,
    as_scan,
)
from tests.helpers.waiting import until
from tests.services.elasticsearch import Elasticsearch
from tests.services.http_faults import FaultyProxy
from tests.services.kafka import KafkaBroker
from tests.services.putserver import PutServer
from tests.services.stores import ObjectStore
from tests.services.webhook import WebhookServer

pytestmark = pytest.mark.spark

#: Key and bytes of a message, of a table's topic.
Value = tuple[str, bytes | None, bytes | None]
#: The messages of rows at the target of a harness.
Values = Callable[[], Iterable[Value]]
#: A harness on a fresh target, and what reads its bytes.
Made = tuple[Harness, Values]

_numbers = itertools.count(1)


# ------------------------------------------------------------------------------- targets

#: How the body of a request with rows begins.
PAYLOAD = '{"payload": ['


def of_files(folder: Callable[[], Path]) -> Values:
    """The lines of rows below a folder, by the topics in the names of the files."""

    def values() -> Iterator[Value]:
        for path in visible_files(folder()):
            for line in file_bytes(path).splitlines():
                key = json.loads(line).get("key")
                if key is not None:
                    topic = path.name.partition(".")[0].split("-")[6]
                    yield topic, json.dumps(key).encode(), line

    return values


def of_topics(broker: KafkaBroker, harness: KafkaHarness, prefix: str) -> Values:
    """The records of rows of the topics, as they are."""

    def values() -> Iterator[Value]:
        for topic in harness.partitions():
            for record in broker.messages(topic):
                if record.key is not None:
                    yield topic.removeprefix(prefix), record.key, record.value

    return values


def of_requests(server: WebhookServer) -> Values:
    """The members of the payloads, cut out of the requests as they are."""

    def values() -> Iterator[Value]:
        decoder = json.JSONDecoder()
        for body in (request.body.decode() for request in server.taken):
            place = len(PAYLOAD) if body.startswith(PAYLOAD) else len(body)
            while body[place : place + 1] == "{":
                member, end = decoder.raw_decode(body, place)
                value = body[place:end].encode()
                yield member["topic"], json.dumps(member["key"]).encode(), value
                place = end + len(", ")

    return values


def of_documents(server: Elasticsearch, harness: ElasticsearchHarness) -> Values:
    """The documents, each with its id."""

    def values() -> Iterator[Value]:
        for number, topic in enumerate(harness.partitions()):
            for key, document in server.documents(topic).items():
                yield str(number), key.encode(), json.dumps(document).encode()

    return values


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Made]]:
    """Makes an unused target of the kind that is the parameter."""
    with ExitStack() as stack:

        def made() -> Made:
            return MAKERS[request.param](request, stack, tmp_path / str(next(_numbers)))

        yield made


def _files(request: pytest.FixtureRequest, stack: ExitStack, folder: Path) -> Made:
    harness = FilesHarness(folder / "out", "partition_format=hourly", {"compression": "gzip"})
    harness.never = {**harness.never, "outlives_outage": "each task makes the folder it writes to"}
    return harness, of_files(lambda: folder / "out")


def _put(request: pytest.FixtureRequest, stack: ExitStack, folder: Path) -> Made:
    server = PutServer(folder, login=f"al:{SECRET}")
    stack.callback(server.stop)
    uri = f"http://al:{SECRET.replace(' ', '%20')}@127.0.0.1:{server.port}/feeds"
    harness = FolderHarness(uri, folder / "feeds", server.down)
    harness.secret = SECRET
    return harness, of_files(lambda: folder / "feeds")


def _store(request: pytest.FixtureRequest, stack: ExitStack, folder: Path) -> Made:
    store: ObjectStore = request.getfixturevalue(request.param)
    bucket = store.bucket(f"spark{next(_numbers)}")
    proxy = stack.enter_context(store.proxied())
    harness = StoreHarness(store, bucket, proxy, folder, "file_size=100")
    return harness, of_files(harness.there)


def _kafka(request: pytest.FixtureRequest, stack: ExitStack, folder: Path) -> Made:
    broker: KafkaBroker = request.getfixturevalue("kafka")
    prefix = f"{request.getfixturevalue('topic')}_{next(_numbers)}_"
    harness = KafkaHarness(broker, prefix, 3)
    return harness, of_topics(broker, harness, prefix)


def _webhook(request: pytest.FixtureRequest, stack: ExitStack, folder: Path) -> Made:
    server = WebhookServer(authorization=f"Bearer {WEBHOOK_SECRET}")
    stack.callback(server.stop)
    options = {"webhook_auth_header": f"Bearer {WEBHOOK_SECRET}"}
    return WebhookHarness(server, server.uri, options), of_requests(server)


def _elasticsearch(request: pytest.FixtureRequest, stack: ExitStack, folder: Path) -> Made:
    server: Elasticsearch = request.getfixturevalue("elasticsearch")
    proxy = stack.enter_context(FaultyProxy(server.port, matching="/"))
    harness = ElasticsearchHarness(server, proxy, "")
    return harness, of_documents(server, harness)


Maker = Callable[[pytest.FixtureRequest, ExitStack, Path], Made]
MAKERS: dict[str, Maker] = {
    "files": _files,
    "put": _put,
    "s3": _store,
    "gcs": _store,
    "azure": _store,
    "kafka": _kafka,
    "webhook": _webhook,
    "elasticsearch": _elasticsearch,
}
FILES = ("files", "put", "s3", "gcs", "azure")
#: One of each way is in the first half.
FIRST = ("files-scan", "webhook-lanes")
MARKERS = {"kafka": [pytest.mark.kafka], "elasticsearch": [pytest.mark.elasticsearch]}

#: Twenty jobs in a row, and a target that does not answer four attempts of a task: these cases take
#: long, and run once for each kind of sink.
LONG = ("delivers_in_order", "outlives_outage")
#: What lanes into the webhook and Kafka prove of lanes, and what the node proves of the target:
#: ``CHANGEFEED_TESTS=all`` has them.
AGAIN = {("elasticsearch", case) for case in LONG}

#: The ways of `make test-all`: both into files, scans into objects, backlogs into the others.
#: ``CHANGEFEED_TESTS=all`` has all of them, which takes some minutes more.
USUAL = (
    "files-scan",
    "files-lanes",
    "s3-scan",
    "kafka-lanes",
    "webhook-lanes",
    "elasticsearch-lanes",
)

WAYS = [
    (kind, name, way) for kind in MAKERS for name, way in (("scan", as_scan), ("lanes", as_lanes))
]


def marks(kind: str, name: str, case: str = "") -> list[pytest.MarkDecorator]:
    """The markers of the tests of a way to a target."""
    first = f"{kind}-{name}" in FIRST and case not in LONG
    extended = [] if first else [pytest.mark.extended]
    usual = f"{kind}-{name}" in USUAL and (kind, case) not in AGAIN
    more = [] if usual else [pytest.mark.everything]
    return [*MARKERS.get(kind, ()), *extended, *more]


ON_EVERY_TARGET = pytest.mark.parametrize(
    ("fresh", "way"),
    [
        pytest.param(kind, way, id=f"{kind}-{name}", marks=marks(kind, name))
        for kind, name, way in WAYS
    ],
    indirect=["fresh"],
)


# ------------------------------------------------------------------------------- the list


#: Cases in which rows are written. In the rest of the list the node is alone.
WRITING = (
    "delivers_in_order",
    "delivers_deletes",
    "delivers_key_changes",
    "delivers_awkward_text",
    "delivers_large_values",
    "delivers_schema_changes",
    "delivers_several_tables",
    "truncates",
    "replays_harmlessly",
    "survives_crash_before_commit",
    "commits_durably",
    "aborts",
    "outlives_outage",
    "refuses_oversize",
)
#: What differs where a file is an object of a store: when it is seen, and how large it may be.
STORED = (
    "delivers_several_tables",
    "delivers_large_values",
    "survives_crash_before_commit",
    "commits_durably",
)
#: The store that goes away under a task.
OUTAGE_OF_STORES = ("s3", "outlives_outage")
#: Cases in which a target refuses a row: of the others, any number may have arrived.
REFUSING = ("refuses_oversize", "delivers_large_values")


def by_key(values: Values) -> dict[tuple[str, bytes | None], list[bytes | None]]:
    """The distinct values of each key, in the order in which they first came."""
    found: dict[tuple[str, bytes | None], dict[bytes | None, None]] = defaultdict(dict)
    for topic, key, value in values():
        found[topic, key][value] = None
    return {place: list(each) for place, each in found.items()}


def cases_of(kind: str, name: str) -> list[Case]:
    """The cases for a way to a target."""
    wanted: Sequence[str] = WRITING
    if kind in FILES and kind != "files":
        wanted = STORED
    elif kind not in FILES and name == "scan":
        wanted = [case for case in WRITING if case not in LONG]
    return [case for case in CASES if case.name in wanted or (kind, case.name) == OUTAGE_OF_STORES]


@pytest.mark.parametrize(
    ("case", "fresh", "way"),
    [
        pytest.param(
            case, kind, way, id=f"{case}-{kind}-{name}", marks=marks(kind, name, case.name)
        )
        for kind, name, way in WAYS
        for case in cases_of(kind, name)
    ],
    indirect=["fresh"],
)
def test_conformance(
    case: Case, fresh: Callable[[], Made], way: Way, spark_engine: NodeSpark
) -> None:
    harness, values = fresh()
    reason = run_case(case, SparkHarness(harness, spark_engine, way))
    if reason:
        pytest.skip(f"never: {reason}")
    node, expected = fresh()
    assert run_case(case, node) == ""
    if not (case.name in REFUSING and harness.max_message_bytes):
        assert by_key(expected)
        assert by_key(values) == by_key(expected)


# ------------------------------------------------------------------------------- tasks in trouble


def check(harness: Harness, feed: FeedDouble) -> None:
    """What a reader sees is in order and complete."""
    latest = bool(getattr(harness, "keeps_latest", False))
    partitions = harness.partitions()
    validate(
        harness.read(),
        OrderValidator(),
        ResolvedValidator(partitions),
        BeforeAfterValidator(feed.history),
        FingerprintValidator(feed.history.table, partitions, None if latest else feed.history),
    )


def feed_of(harness: Harness) -> FeedDouble:
    """A feed of one table, as the list has it."""
    able = harness.sink().capabilities
    return FeedDouble(
        {"t": harness.topic("t")},
        key_in_value=able.key_in_value,
        topic_in_value=able.topic_in_value,
    )


def first_changes() -> list[Write]:
    """Of forty keys, so that every task has some in each half."""
    return [put(key, "old", 1) for key in range(40)] + [delete(key, 2) for key in range(0, 40, 4)]


def in_trouble(
    feed: FeedDouble, harness: SparkHarness, kind: str, folder: Path
) -> tuple[SparkSink, Trouble]:
    """An opened sink whose tasks meet a trouble."""
    sink = harness.sink()
    feed.open(sink)
    sink.trouble = trouble = Trouble(kind, folder / "notes")
    trouble.folder.mkdir()
    return sink, trouble


@ON_EVERY_TARGET
def test_a_task_that_dies_is_repeated(
    fresh: Callable[[], Made], way: Way, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    harness, values = fresh()
    feed = feed_of(harness)
    sink, trouble = in_trouble(feed, SparkHarness(harness, spark_engine, way), "die", tmp_path)
    feed.deliver(sink, first_changes())
    assert trouble.attempts == [2] * TASKS
    sink.trouble = None
    feed.deliver(sink, [put(key, "new", 3) for key in range(40)])
    feed.resolve(sink)
    sink.close()
    check(harness, feed)
    assert len({key for _, key, _ in values()}) == 40


@ON_EVERY_TARGET
def test_a_task_that_was_given_up_writes_no_more(
    fresh: Callable[[], Made], way: Way, spark_engine: NodeSpark, tmp_path: Path
) -> None:
    """Its rows are delivered again, with newer ones behind them, while it would go on."""
    harness, values = fresh()
    feed = feed_of(harness)
    sink, trouble = in_trouble(feed, SparkHarness(harness, spark_engine, way), "stall", tmp_path)
    raised: list[ChangefeedError] = []

    def write() -> None:
        try:
            feed.write(sink, feed.epoch(at(2)), first_changes())
        except ChangefeedError as error:
            raised.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    until(lambda: len(trouble.attempts) == TASKS, "both tasks wrote the first half")
    sink.give_up()
    writing.join(60)
    assert [error.message for error in raised] == ["the Spark job was cancelled"]
    before = len(list(values()))
    (trouble.folder / "go").touch()
    sink.trouble = None
    again = [*first_changes(), *(put(key, "new", 3) for key in range(40))]
    feed.deliver(sink, again)
    feed.resolve(sink)
    sink.close()
    check(harness, feed)
    if not getattr(harness, "keeps_latest", False):
        assert len(list(values())) == before + len(again)
