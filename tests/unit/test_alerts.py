"""Alerts of a node: what begins and ends, and what a webhook, a chat and a mail server get."""

from __future__ import annotations

import base64
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from click.testing import CliRunner

from changefeed.alerts.book import QUIET, REPEAT, Alert, AlertBook
from changefeed.alerts.channels import AlertChannel, channel, try_channel
from changefeed.alerts.rules import RULES, Breach, Rule, breaches
from changefeed.alerts.watch import MOST, AlertWatch
from changefeed.core.clock import ManualClock
from changefeed.core.errors import ChangefeedError
from changefeed.monitor import StateCollector
from shell.cli import cli
from tests.golden.world import NOW
from tests.helpers.served import Bench
from tests.helpers.waiting import until
from tests.services.certificates import write_certificates
from tests.services.webhook import WebhookServer
from tests.unit import test_alert_files

BEHIND, SOURCE_DOWN = RULES[1], RULES[3]


def late(feed: str = "f", seconds: float = 400.0, rule: Rule = BEHIND) -> Breach:
    return Breach(rule, (("feed", feed), ("job_id", "1"), ("source", "shop")), seconds)


# ------------------------------------------------------------------------- rules


def test_the_rules_are_those_of_prometheus() -> None:
    """But for the node that does not answer: it cannot say so."""
    listed = [rule for rule in test_alert_files.rules() if rule["alert"] != "ChangefeedNodeDown"]
    seconds = {"m": 60, "s": 1}
    assert [
        (r["alert"], r["expr"], r["labels"]["severity"], r["annotations"]["runbook_url"])
        for r in listed
    ] == [(r.name, r.expression, r.severity, f"docs/operating.md#{r.section}") for r in RULES]
    assert [int(r["for"][:-1]) * seconds[r["for"][-1]] for r in listed] == [r.hold for r in RULES]


def test_each_rule_finds_what_is_wrong(bench: Bench) -> None:
    collector = StateCollector(bench.world.interpreter)
    bench.world.run("CREATE CHANGEFEED calm FOR orders INTO 'kafka://k:9092'")
    bench.world.node.deliver("calm", NOW, rows=50)
    assert breaches(collector.collect()) == []
    bench.world.run("DROP CHANGEFEED calm")
    test_alert_files.scraped(bench)
    found = breaches(collector.collect())
    assert [breach.rule for breach in found] == list(RULES)
    assert [breach.summary for breach in found] == [
        "Feed f needs attention.",
        "Feed f is 15h late.",
        "Feed f has used 60% of gc_ttl.",
        "Source shop does not answer.",
        "Feed f has burnt 5000% of its budget of late rows.",
        "1 rows of shop.public.orders differ from the target of f.",
        "The last run of schedule s failed.",
    ]


# ------------------------------------------------------------------------- the book


def test_an_alert_begins_after_its_time_lasts_and_ends() -> None:
    book = AlertBook()

    def look(at: float, *found: Breach) -> list[tuple[str, bool]]:
        said = book.look(found, at, int(at * 1e9))
        return sorted((str(dict(a.breach.labels)["feed"]), a.ended is None) for a in said)

    assert look(0, late()) == [], "a rule is true for its time first"
    assert look(200) == look(210, late()) == look(400, late("g")) == [], "it was not, in between"
    assert look(410, late(), late("g")) == []
    assert look(710, late(), late("g")) == [("f", True), ("g", True)]
    assert look(720, late(), late("g")) == look(730, late("g")) == [], "it may come back at once"
    assert look(735, late(), late("g")) == []
    assert look(740, late("g")) == []
    assert look(735 + QUIET, late("g")) == [("f", False)]
    assert look(900, late("g")) == []
    assert look(710 + REPEAT, late("g")) == [("g", True)]
    assert look(711 + REPEAT, late("g")) == []


def test_an_alert_says_when_it_began_and_what_it_is_now() -> None:
    book, day = AlertBook(), 10**9
    book.look([late(seconds=310)], 0, 1 * day)
    [alert] = book.look([late(seconds=650)], 300, 301 * day)
    assert (alert.began, alert.breach.value, alert.ended) == (day, 650, None)
    book.look([late(seconds=700)], 310, 311 * day)
    [alert] = book.look([], 400, 401 * day)
    assert (alert.began, alert.breach.value, alert.ended) == (day, 700, 401 * day)


# ------------------------------------------------------------------------- the thread


class Kept(AlertChannel):
    """Takes alerts, or does not."""

    def __init__(self) -> None:
        self.got: list[list[Alert]] = []
        self.away = False

    def send(self, alerts: Sequence[Alert], node: str) -> None:
        if self.away:
            raise ChangefeedError("CF5001", "away")
        self.got.append(list(alerts))


def watch(bench: Bench, *kept: AlertChannel, leads: deque[bool] | None = None) -> AlertWatch:
    interpreter = bench.world.interpreter
    return AlertWatch(
        kept,
        StateCollector(interpreter).collect,
        lambda: {job.name: shown.reason for job, shown in interpreter.health()},
        lambda: leads is None or leads.popleft(),
        ManualClock(NOW),
        every=0.01,
    )


def test_what_a_channel_did_not_take_is_sent_later(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Kept(), Kept()
    other.away = True
    bench.world.catalog.save_source_state("shop", error="cannot connect")
    watching = watch(bench, one, other)
    clock: Any = watching._clock
    watching.turn()
    for _ in range(3):
        clock.advance(SOURCE_DOWN.hold)
        watching.turn()
    other.away = False
    bench.world.catalog.save_source_state("shop", error="")
    clock.advance(QUIET)
    watching.turn()
    ended = [[alert.ended is not None for alert in alerts] for alerts in one.got]
    assert ended == [[False], [True]]
    assert [[alert.ended is not None for alert in alerts] for alerts in other.got] == [
        [False, True]
    ]
    assert [record.getMessage() for record in caplog.records] == ["alerts: CF5001 away"]


def test_one_node_sends_and_another_begins_anew(bench: Bench) -> None:
    kept = Kept()
    bench.world.catalog.save_source_state("shop", error="cannot connect")
    watching = watch(bench, kept, leads=deque([False, True, True, False, True, True]))
    clock: Any = watching._clock
    for _ in range(6):
        clock.advance(SOURCE_DOWN.hold)
        watching.turn()
    assert len(kept.got) == 2


def test_alerts_that_nobody_takes_are_bounded(bench: Bench) -> None:
    kept = Kept()
    kept.away = True
    watching = watch(bench, kept)
    watching._waiting[kept] = [Alert(late(str(n)), n) for n in range(MOST + 5)]
    watching.turn()
    assert [alert.began for alert in watching._waiting[kept]] == list(range(5, MOST + 5))


def test_the_thread_looks_and_ends(bench: Bench) -> None:
    bench.world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://u:hunter2@k:9092'")
    bench.world.node.deliver("f", NOW - 15 * 3600 * 10**9, rows=50)
    kept = Kept()
    with watch(bench, kept) as watching:
        until(lambda: bool(kept.got), "the alert of gc_ttl waits for nothing")
    assert not watching._thread.is_alive()
    [alert] = kept.got[0]
    assert alert.breach.rule.name == "ChangefeedRetentionUsed"
    assert alert.reason.startswith("running") and "hunter2" not in repr(kept.got)


# ------------------------------------------------------------------------- webhooks


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    made = WebhookServer()
    yield made
    made.stop()


ALERTS = [
    Alert(late(), 1_600_000_000 * 10**9, None, "running: the brokers do not acknowledge"),
    Alert(late("g", rule=SOURCE_DOWN), 1_600_000_000 * 10**9, 1_600_000_060 * 10**9, "gone"),
]


def test_a_webhook_gets_what_alertmanager_sends(server: WebhookServer) -> None:
    """https://prometheus.io/docs/alerting/latest/configuration/#webhook_config"""
    channel(f"{server.uri}?team=data").send(ALERTS, "host-1")
    [request] = server.taken
    assert request.path == "/hook?team=data"
    value = request.value
    assert (value["version"], value["status"], value["receiver"]) == ("4", "firing", "changefeed")
    assert value["alerts"][0] == {
        "status": "firing",
        "labels": {
            "alertname": "ChangefeedBehind",
            "job": "changefeed",
            "instance": "host-1",
            "severity": "warning",
            "feed": "f",
            "job_id": "1",
            "source": "shop",
        },
        "annotations": {
            "summary": "Feed f is 6m 40s late.",
            "runbook_url": "docs/operating.md#alert-behind",
            "description": "running: the brokers do not acknowledge",
        },
        "startsAt": "2020-09-13T12:26:40Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": "ChangefeedBehind/feed=f/job_id=1/source=shop",
    }
    ended = value["alerts"][1]
    assert (ended["status"], ended["endsAt"]) == ("resolved", "2020-09-13T12:27:40Z")


def test_slack_gets_a_text(server: WebhookServer) -> None:
    channel(f"{server.uri}?alert_format=slack").send(ALERTS, "host-1")
    [request] = server.taken
    assert request.path == "/hook" and request.value == {
        "text": "FIRING warning: Feed f is 6m 40s late. running: the brokers do not acknowledge\n"
        "RESOLVED critical: Source shop does not answer."
    }
    slack: Any = channel("webhook-https://hooks.slack.com/services/T0/B0/secret")
    assert slack._slack and slack.place == "hooks.slack.com"


def test_a_webhook_by_tls_with_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_certificates(tmp_path)
    authority = base64.urlsafe_b64encode((folder / "ca.pem").read_bytes()).decode()
    login = base64.b64encode(b"ann:se/same").decode()
    server = WebhookServer(certificates=folder, authorization=f"Basic {login}")
    monkeypatch.setenv("SECRET", "se/same")
    try:
        uri = server.uri.replace("//", "//ann:${env:SECRET}@")
        with pytest.raises(ChangefeedError) as caught:
            channel(uri).send(ALERTS, "host-1")
        assert caught.value.code.number == "CF5001"
        channel(f"{uri}?ca_cert={authority}").send(ALERTS, "host-1")
    finally:
        server.stop()
    assert len(server.taken) == 1


@pytest.mark.parametrize(("status", "code"), [(500, "CF5001"), (404, "CF5002"), (302, "CF5002")])
def test_a_webhook_that_refuses(server: WebhookServer, status: int, code: str) -> None:
    server.judge = lambda body: status
    with pytest.raises(ChangefeedError) as caught:
        channel(f"{server.uri}?token=sesame").send(ALERTS, "host-1")
    error = caught.value
    assert (error.code.number, error.message) == (
        code,
        f"the webhook at 127.0.0.1:{server.port} answered an alert with {status}",
    )
    server.stop()
    with pytest.raises(ChangefeedError, match="does not take an alert") as caught:
        channel(f"{server.uri}?token=sesame").send(ALERTS, "host-1")
    assert "sesame" not in str(caught.value) and caught.value.code.number == "CF5001"


# ------------------------------------------------------------------------- mail


class OnAnyPort(Controller):
    """The package connects once to the port that it was given."""

    def _trigger_server(self) -> None:
        server: Any = self.server
        self.port = server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


class Mailbox:
    """A mail server of the tests; with ``folder`` of certificates it has STARTTLS."""

    def __init__(self, folder: Path | None = None, login: tuple[str, str] | None = None) -> None:
        self.got: list[Envelope] = []
        self.refused = ""
        tls = None
        if folder is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(folder / "server-keystore.pem")

        def judge(
            server: Any, session: Any, envelope: Any, mechanism: str, data: Any
        ) -> AuthResult:
            given = isinstance(data, LoginPassword) and (
                data.login.decode(),
                data.password.decode(),
            )
            return AuthResult(success=given == login, handled=False)

        self.controller = OnAnyPort(
            self,
            hostname="127.0.0.1",
            port=0,
            tls_context=tls,
            authenticator=judge if login else None,
            auth_required=login is not None,
            auth_require_tls=tls is not None,
        )

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        if self.refused:
            return self.refused
        self.got.append(envelope)
        return "250 OK"

    def __enter__(self) -> Mailbox:
        self.controller.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.controller.stop()

    @property
    def port(self) -> int:
        return int(self.controller.port)


PEOPLE = "from=feeds@example.com&to=ann@example.com,bob@example.com"


def test_a_mail_says_what_and_where() -> None:
    with Mailbox() as box:
        channel(f"smtp://127.0.0.1:{box.port}?{PEOPLE}").send(ALERTS, "host-1")
    [envelope] = box.got
    assert envelope.mail_from == "feeds@example.com"
    assert envelope.rcpt_tos == ["ann@example.com", "bob@example.com"]
    assert isinstance(envelope.content, bytes)
    mail = message_from_bytes(envelope.content)
    assert mail["Subject"] == "changefeed on host-1: 1 firing, 1 resolved"
    text = str(mail.get_payload())
    assert "FIRING warning: Feed f is 6m 40s late." in text
    assert "docs/operating.md#alert-source-down" in text


def test_a_mail_by_starttls_with_a_login(tmp_path: Path) -> None:
    folder = write_certificates(tmp_path)
    authority = base64.urlsafe_b64encode((folder / "ca.pem").read_bytes()).decode()
    with Mailbox(folder, ("ann", "sesame")) as box:
        uri = f"smtp://ann:PASSWORD@127.0.0.1:{box.port}?{PEOPLE}&ca_cert={authority}"
        channel(uri.replace("PASSWORD", "sesame")).send(ALERTS, "host-1")
        with pytest.raises(ChangefeedError) as caught:
            channel(uri.replace("PASSWORD", "wrong")).send(ALERTS, "host-1")
        assert caught.value.code.number == "CF5002" and "wrong" not in str(caught.value)
        with pytest.raises(ChangefeedError) as caught:
            channel(uri.partition("&ca_cert")[0]).send(ALERTS, "host-1")
        assert caught.value.code.number == "CF5001", "nobody vouches for the server"
    assert len(box.got) == 1


@pytest.mark.parametrize(("said", "code"), [("554 no", "CF5002"), ("451 later", "CF5001")])
def test_a_mail_server_that_refuses(said: str, code: str) -> None:
    with Mailbox() as box:
        box.refused = said
        to = channel(f"smtp://127.0.0.1:{box.port}?{PEOPLE}")
        with pytest.raises(ChangefeedError) as caught:
            to.send(ALERTS, "host-1")
        assert caught.value.code.number == code
    with pytest.raises(ChangefeedError) as caught:
        to.send(ALERTS, "host-1")
    assert caught.value.code.number == "CF5001"


def test_a_password_does_not_leave_this_machine_without_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Mailbox() as box:
        to = channel(f"smtp://ann:sesame@127.0.0.1:{box.port}?{PEOPLE}")
        monkeypatch.setattr("changefeed.alerts.channels.names_this_machine", lambda host: False)
        with pytest.raises(ChangefeedError, match="offers no TLS") as caught:
            to.send(ALERTS, "host-1")
    assert "sesame" not in str(caught.value) and not box.got


# ------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("uri", "code", "message"),
    [
        ("kafka://k:9092", "CF1201", "no alert goes to kafka://"),
        ("smtp://h", "CF1207", "from must be an address"),
        ("smtp://h?from=a@b", "CF1207", "to must be an address"),
        ("smtp://h?from=a@b%0aBcc:x&to=b@c", "CF1207", "from must be an address"),
        ("smtps://h?from=a@b&to=b@c&cc=d@e", "CF1202", "unknown mail server query parameters"),
        ("webhook-https:///x", "CF1201", "a webhook needs one host"),
        ("webhook-http://h?alert_format=teams", "CF1207", "alert_format"),
        ("webhook-https://h/${env:NO_SUCH_SECRET}", "CF1208", "NO_SUCH_SECRET"),
    ],
)
def test_a_uri_that_cannot_work(uri: str, code: str, message: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        channel(uri)
    assert caught.value.code.number == code and message in caught.value.message


def test_changefeed_alert_tries_a_uri(server: WebhookServer) -> None:
    done = CliRunner().invoke(cli, ["alert", server.uri])
    assert (done.exit_code, done.output) == (0, f"127.0.0.1:{server.port} took the test alert\n")
    assert server.taken[0].value["alerts"][0]["labels"]["alertname"] == "ChangefeedTest"
    assert try_channel(server.uri, ManualClock(NOW)) == f"127.0.0.1:{server.port}"
