"""Secrets by reference, from statement to sink; one is replaced while the feed runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import running
from tests.helpers.waiting import until
from tests.services.postgres import Database, PostgresCluster
from tests.services.webhook import WebhookServer

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]


def test_secrets_are_replaced_while_a_feed_runs(
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    postgres.execute("create table t (a int primary key); insert into t values (1)")
    monkeypatch.setenv("CF_TEST_LOGIN", "s3cret")
    token = tmp_path / "token"
    token.write_text("Zq9old")
    server = WebhookServer(authorization="Bearer Zq9old")
    scheme, _, rest = postgres.uri.partition("://")
    login, _, place = rest.rpartition("@")
    user = login.partition(":")[0]
    state = tmp_path / "state"
    with running(state, spark_engine) as feeds:
        with pytest.raises(ChangefeedError, match="has no such variable") as caught:
            feeds.connect(shop=f"{scheme}://{user}:${{env:CF_TEST_NONE}}@{place}")
        assert caught.value.code is Code.SECRET_UNREADABLE
        feeds.connect(shop=f"{scheme}://{user}:${{env:CF_TEST_LOGIN}}@{place}")
        create = (
            f"CREATE CHANGEFEED f FOR t INTO '{server.uri}' WITH retry_for = '1h',"
            " webhook_auth_header = 'Bearer ${file:%s}'"
        )
        found = repr(feeds.execute(f"VALIDATE {create % (tmp_path / 'nothing')}").rows)
        assert "CF1208" in found and "cannot be read: No such file" in found
        feeds.execute(create % token)
        feeds.sync("f")
        server.authorization = "Bearer Zq9new"
        postgres.execute("insert into t values (2)")
        until(lambda: feeds.catalog.job("f").status is Status.RETRYING)
        assert feeds.catalog.job("f").error_code == Code.SECRET_UNREADABLE
        token.write_text("Zq9new")
        feeds.sync("f")
        shown = "".join(
            repr(feeds.execute(statement).rows)
            for statement in (
                "SHOW CREATE CHANGEFEED f",
                "SHOW CHANGEFEED f ERRORS",
                "SHOW CHANGEFEED f EVENTS",
                "SHOW CREATE ALL",
            )
        )
    server.stop()
    assert {m.key for m in server.messages(["t"]) if m.is_row} == {"[1]", "[2]"}
    stored = b"".join(file.read_bytes() for file in state.rglob("*") if file.is_file())
    for secret in ("Zq9", "s3cret"):
        assert secret not in shown and secret.encode() not in stored
    assert b"${env:CF_TEST_LOGIN}" in stored


@pytest.mark.extended
def test_a_source_gets_a_new_password(
    tmp_path: Path, own_postgres: PostgresCluster, spark_engine: NodeSpark
) -> None:
    """The node's own connections, made again for a rescan; the stream goes on meanwhile."""
    own_postgres.set_hba("host all rot 127.0.0.1/32 scram-sha-256")
    secret = tmp_path / "secret"
    secret.write_text("Zq9old")
    with own_postgres.database() as database, running(tmp_path / "state", spark_engine) as feeds:
        database.execute("create role rot superuser login password 'Zq9old'")
        database.execute("create table t (a int primary key); insert into t values (1)")
        place = database.uri.rpartition("@")[2]
        feeds.connect(shop=f"postgresql://rot:${{file:{secret}}}@{place}")
        out = tmp_path / "out"
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{out}' WITH retry_for = '1h'")
        feeds.sync("f")
        database.execute("alter role rot password 'Zq9new'")
        with pytest.raises(ChangefeedError, match="password authentication failed"):
            feeds.execute("ALTER CHANGEFEED f RESCAN")
        secret.write_text("Zq9new")
        database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where usename = 'rot' and backend_type = 'client backend'"
        )
        feeds.execute("ALTER CHANGEFEED f RESCAN")
        feeds.sync("f")
        found = [line for file in out.rglob("*.ndjson") for line in file.read_text().splitlines()]
    assert len([line for line in found if '"a": 1' in line]) == 2, "both scans are there"
