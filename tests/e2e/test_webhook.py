"""From a statement to a webhook: a scan, changes, an outage, and secrets that stay hidden."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from changefeed.catalog import Status
from changefeed.core.telemetry import log
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.validators import OrderValidator, ResolvedValidator, validate
from tests.e2e.feeds import EITHER_ENGINE, running
from tests.e2e.test_copy_example import load_script
from tests.e2e.test_examples import EXAMPLES, play
from tests.helpers.waiting import until
from tests.services.postgres import Database
from tests.services.webhook import WebhookServer

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]


@EITHER_ENGINE
def test_a_table_by_webhook(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> None:
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 'row ' || i from generate_series(1, 2500) i"
    )
    server = WebhookServer(authorization="Bearer hunter2")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO '{server.uri}?parallel=3&sig=s3cret'"
            " WITH updated, resolved = '200ms', webhook_auth_header = 'Bearer hunter2',"
            " webhook_signing_secret = 'k3y', compression = 'gzip',"
            """ webhook_sink_config = '{"Flush": {"Messages": 500, "Frequency": "50ms"}}'"""
        )
        feeds.sync("f")
        with server.down():
            postgres.execute("update t set b = 'new' where a <= 10; delete from t where a = 11")
        feeds.sync("f")
        shown = repr(feeds.execute("SHOW CREATE CHANGEFEED f").rows)
        shown += repr(feeds.execute("SHOW CHANGEFEEDS").rows)
        for secret in ("hunter2", "s3cret", "k3y"):
            assert secret not in shown
    server.stop()
    messages = server.messages(["t"])
    validate(messages, OrderValidator(), ResolvedValidator({"t": 1}))
    table = {m.key: m.after for m in messages if m.is_row}
    truth = {f"[{a}]": {"a": a, "b": b} for a, b in postgres.execute("select a, b from t")}
    assert table.pop("[11]") is None
    assert table == truth
    lengths = [request.value.get("length", 0) for request in server.taken]
    assert max(lengths) <= 500
    assert all("x-changefeed-signature" in request.headers for request in server.taken)


@EITHER_ENGINE
def test_an_endpoint_that_is_down_is_no_recovery(
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sink opens without a word to its endpoint: only a delivery shows that it is back."""
    postgres.execute("create table t (a int primary key)")
    postgres.execute("insert into t values (1)")
    server = WebhookServer()
    log.addHandler(caplog.handler)
    caplog.set_level("INFO", logger="changefeed")
    try:
        with running(tmp_path / "state", spark_engine) as feeds:
            feeds.connect(shop=postgres.uri)
            with server.down():
                feeds.execute(f"CREATE CHANGEFEED f FOR t INTO '{server.uri}'")
                until(lambda: "attempt 2" in feeds.catalog.job("f").reason, "a second failure")
                assert feeds.catalog.job("f").status is Status.RETRYING
                assert "recovered" not in caplog.text
            feeds.sync("f")
    finally:
        log.removeHandler(caplog.handler)
        server.stop()
    assert caplog.text.count("recovered") == 1


def test_a_refused_message_stops_its_table_only(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    postgres.execute("create table t (a int primary key, b text)")
    postgres.execute("create table u (a int primary key, b text)")
    server = WebhookServer(judge=lambda body: 422 if b"poison" in body else 200)
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(f"CREATE CHANGEFEED f FOR t, u INTO '{server.uri}' WITH updated")
        feeds.sync("f")
        postgres.execute("insert into t values (1, 'fine')")
        postgres.execute("insert into u values (1, 'poison')")
        deadline = time.monotonic() + 60
        while "failed" not in repr(feeds.execute("SHOW CHANGEFEED f TABLES").rows):
            assert time.monotonic() < deadline, "the table did not stop"
            time.sleep(0.05)
        postgres.execute("insert into t values (2, 'later')")
        while "[2]" not in (keys := [m.key for m in server.messages([]) if m.topic == "t"]):
            assert time.monotonic() < deadline, f"only {keys} came"
            time.sleep(0.05)
        said = repr(feeds.execute("SHOW CHANGEFEED f TABLES").rows)
        assert "it answered 422" in said and "poison" not in said
        assert feeds.catalog.job("f").status.value == "running"
    server.stop()


def test_the_example(tmp_path: Path, postgres: Database, spark_engine: NodeSpark) -> None:
    folder = EXAMPLES / "webhook"
    receiver = load_script(folder / "receive.py")
    table = receiver.Table()
    server = receiver.server(0, b"a secret of both sides", table)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    play(postgres, folder / "setup.sql")
    with running(tmp_path / "state", spark_engine) as feeds:
        hook = f"webhook-http://127.0.0.1:{server.server_address[1]}/orders"
        feeds.connect(shop=postgres.uri, hook=hook)
        feeds.run_file(folder / "feeds.sql")
        feeds.sync("orders_to_hook")
        assert table.rows.keys() == {"[1]", "[2]"}
        play(postgres, folder / "changes.sql")
        feeds.sync("orders_to_hook")
    server.shutdown()
    server.server_close()
    assert table.rows == {"[1]": {"id": 1, "customer": "ann", "total": 10.25}}
    header = f"t={int(time.time())},v1=0"
    assert not receiver.genuine(b"a secret of both sides", header, b"{}")
