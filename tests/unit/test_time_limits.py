"""A server that sends a byte now and then holds no feed: every request has an end."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from changefeed.core.errors import Action, ChangefeedError
from changefeed.encoding.registry import RegistrySchema, RegistrySettings, SchemaRegistry
from changefeed.options.sink_config import webhook_sink_config
from sinks.elasticsearch import client as elasticsearch
from sinks.elasticsearch.options import ElasticsearchSettings
from sinks.files.places.spec import PlaceSpec
from sinks.files.places.web import WebPlace
from sinks.warehouse.bigquery import client as bigquery_client
from sinks.warehouse.clickhouse import client as clickhouse_client
from sinks.warehouse.dialect import Warehouse
from sinks.warehouse.snowflake import client as snowflake_client
from sinks.webhook.client import WebhookClient
from sinks.webhook.options import WebhookSettings
from tests.services.certificates import write_certificates
from tests.services.http_faults import FaultyProxy, drip

#: Seconds a server may be silent; a byte comes four times as often.
IDLE, PAUSE = 0.2, 0.05
#: A request may take so many times as long.
PATIENCE = 2


@pytest.fixture(params=["headers", "body"])
def server(request: pytest.FixtureRequest) -> Iterator[FaultyProxy]:
    with FaultyProxy(1, matching="/") as proxy:
        proxy.always = drip(PAUSE, headers=request.param == "headers")
        yield proxy


def given_up(act: Callable[[], object]) -> ChangefeedError:
    """The error of an act that ends: the server would go on for an hour."""
    with pytest.raises(ChangefeedError) as caught:
        act()
    assert caught.value.code.number == "CF5001" and caught.value.action is Action.RETRY
    return caught.value


def test_webhook(server: FaultyProxy) -> None:
    uri = f"webhook-http://127.0.0.1:{server.port}/in"
    config = webhook_sink_config({"Retry": {"Max": 1}})
    options = {"webhook_client_timeout": IDLE, "webhook_sink_config": config}
    client = WebhookClient(
        WebhookSettings.read(uri, options), "f", threading.Event(), patience=PATIENCE
    )
    assert "in time" in given_up(lambda: client.post(b"{}", "key")).message
    assert len(server.seen) == 1
    client.close()


def test_files_by_put(server: FaultyProxy) -> None:
    spec = PlaceSpec("web", "http", f"http://127.0.0.1:{server.port}/out", "out", {})
    place = WebPlace(spec, timeout=IDLE, patience=PATIENCE)
    given_up(lambda: place.put("a.ndjson", b"{}"))
    place.close()


def test_schema_registry(server: FaultyProxy) -> None:
    settings = RegistrySettings.read(f"http://127.0.0.1:{server.port}?timeout={IDLE}s")
    opened = SchemaRegistry(settings, patience=PATIENCE)
    given_up(lambda: opened.register("t-value", RegistrySchema("AVRO", '"string"'), "table t"))
    opened.close()


def test_elasticsearch(server: FaultyProxy) -> None:
    uri = f"elasticsearch://127.0.0.1:{server.port}?timeout=200ms"
    client = elasticsearch.Cluster(ElasticsearchSettings.read(uri, {}), patience=PATIENCE)
    given_up(lambda: client.call("GET", "/"))
    client.close()


def test_elasticsearch_over_tls(tmp_path: Path) -> None:
    certificates = write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server-keystore.pem")
    authority = quote(base64.b64encode((certificates / "ca.pem").read_bytes()))
    with FaultyProxy(1, matching="/", tls=context) as proxy:
        proxy.always = drip(PAUSE, headers=False)
        place = f"127.0.0.1:{proxy.port}"
        uri = f"elasticsearch+https://{place}?timeout=200ms&ca_cert={authority}"
        client = elasticsearch.Cluster(ElasticsearchSettings.read(uri, {}), patience=PATIENCE)
        given_up(lambda: client.call("GET", "/"))
        assert len(proxy.seen) == 1
        client.close()


def test_clickhouse(server: FaultyProxy) -> None:
    address = clickhouse_client.Address("127.0.0.1", server.port, "u", "p")
    client = clickhouse_client.ClickHouse(address, "db", answer_seconds=1, patience=0.4)
    given_up(client.connect)


BIGQUERY = bigquery_client.Limits(call=0.1, idle=IDLE, patience=PATIENCE)


def test_bigquery(server: FaultyProxy) -> None:
    endpoint = f"http://127.0.0.1:{server.port}"
    client = bigquery_client.BigQueryWarehouse("p", "d", endpoint=endpoint, limits=BIGQUERY)
    given_up(client.connect)
    assert server.seen


def test_the_tokens_of_bigquery(server: FaultyProxy) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    key = {
        "type": "service_account",
        "client_email": "feed@p.iam.gserviceaccount.com",
        "token_uri": f"http://127.0.0.1:{server.port}/token",
        "private_key": private.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ).decode(),
    }
    client = bigquery_client.BigQueryWarehouse(
        "p", "d", credentials=json.dumps(key), limits=BIGQUERY
    )
    given_up(client.connect)
    assert server.seen


def snowflake(proxy: FaultyProxy, protocol: str) -> Warehouse:
    """It gives up after seconds, of which the connector takes whole ones."""
    limits = snowflake_client.Limits(login=3, call=3, idle=1, patience=0.05)
    login = snowflake_client.Login(
        "a", "u", "p", host="127.0.0.1", port=str(proxy.port), protocol=protocol
    )
    return snowflake_client.SnowflakeWarehouse(login, "d", "s", limits)


def test_snowflake(server: FaultyProxy) -> None:
    given_up(snowflake(server, "http").connect)
    assert server.seen


def test_snowflake_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector's TLS is pyOpenSSL's, with sockets of its own."""
    certificates = write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server-keystore.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates / "ca.pem"))
    with FaultyProxy(1, matching="/", tls=context) as proxy:
        proxy.always = drip(PAUSE, headers=False)
        given_up(snowflake(proxy, "https").connect)
        assert proxy.seen
