"""Where alerts go: a webhook, a chat's incoming webhook, a mail server.

A channel is a URI, whose secrets may be references (:mod:`changefeed.core.references`). No error
from here contains more of it than the host.
"""

from __future__ import annotations

import json
import smtplib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from typing import TYPE_CHECKING, Final

import httpx

from changefeed.alerts.book import Alert
from changefeed.alerts.rules import Breach, Rule
from changefeed.core.addresses import names_this_machine
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.references import resolved_uri
from changefeed.core.settings import (
    Authority,
    ServerSettings,
    Settings,
    group,
    invalid,
    rest,
    setting,
    tls_context,
)
from changefeed.core.uri import invalid_uri, split_uri, webhook_endpoint

#: Seconds without an answer after which a message has failed.
PATIENCE: Final = 10.0

_RUNBOOK = "docs/operating.md#"
_HINT = (
    "write webhook-https://host/path, smtp://host?from=..&to=.. or smtps://host?from=..&to=.. for "
    "--alert."
)


class AlertChannel(ABC):
    """A place that alerts go to."""

    def __init__(self, place: str, authority: Authority) -> None:
        self.place = place
        self._authority = authority

    @abstractmethod
    def send(self, alerts: Sequence[Alert], node: str) -> None:
        """Send alerts as one message; ``node`` is the host that says so.

        Raises:
            ChangefeedError: CF5001 the server does not answer or failed, CF5002 it refuses the
                login or the message.
        """

    def _tls(self) -> ssl.SSLContext:
        return tls_context(self._authority.ca_cert)


def channel(uri: str) -> AlertChannel:
    """The channel of a URI; connects to nothing.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207 the URI, CF1208 a secret that it refers to.
    """
    parts = split_uri(resolved_uri(uri), "the address of --alert", _HINT)
    if parts.scheme in ("webhook-https", "webhook-http"):
        return WebhookChannel(WebhookAlerts.read(parts))
    if parts.scheme in ("smtp", "smtps"):
        return MailChannel(MailAlerts.read(parts))
    raise ChangefeedError(Code.INVALID_URI, f"no alert goes to {parts.scheme}://", hint=_HINT)


def try_channel(uri: str, clock: Clock) -> str:
    """Send a test alert; returns the place that took it.

    Raises:
        ChangefeedError: as :func:`channel` and :meth:`AlertChannel.send`.
    """
    opened = channel(uri)
    rule = Rule("ChangefeedTest", "", 0.0, "warning", "alerts", "This is a test of --alert.")
    now = clock.now().wall
    opened.send([Alert(Breach(rule, (), 1.0), now, now)], socket.gethostname())
    return opened.place


def line(alert: Alert) -> str:
    """One alert for people: ``FIRING critical: Source shop does not answer.``"""
    rule = alert.breach.rule
    word = "RESOLVED" if alert.ended is not None else "FIRING"
    text = f"{word} {rule.severity}: {alert.breach.summary}"
    return text if alert.ended is not None or not alert.reason else f"{text} {alert.reason}"


# ------------------------------------------------------------------------------- webhooks


@dataclass(frozen=True, kw_only=True)
class WebhookPlace(Settings):
    """``webhook-https://`` and ``webhook-http://``; a subclass has its parameters, and ``query``
    behind them."""

    called = "webhook"

    authority: Authority = group(Authority)
    if TYPE_CHECKING:
        query: tuple[tuple[str, str], ...] = rest()

    @property
    def url(self) -> str:
        """Where to POST. Its path may be a secret, so it is not shown."""
        return webhook_endpoint(self.uri.text, self.query)

    def check(self) -> Iterator[ChangefeedError]:
        if len(self.uri.hosts) != 1 or not self.uri.host:
            yield invalid_uri("a webhook needs one host", f"write {self.uri.scheme}://host/path")

    @property
    def place(self) -> str:
        """Its host, for messages."""
        return str(self.uri.hosts[0])

    def post(self, body: object, what: str, option: str, headers: Mapping[str, str]) -> None:
        """POST ``what`` as JSON; ``option`` has the URI.

        Raises:
            ChangefeedError: CF5001, CF5002; see :meth:`AlertChannel.send`.
        """
        uri, secure = self.uri, self.uri.scheme == "webhook-https"
        try:
            answer = httpx.post(
                self.url,
                content=json.dumps(body),
                headers={"Content-Type": "application/json", **headers},
                auth=None if uri.user is None else (uri.user, uri.password or ""),
                timeout=PATIENCE,
                verify=tls_context(self.authority.ca_cert) if secure else False,
                follow_redirects=False,
            )
        except httpx.HTTPError as error:
            raise _unreachable(f"the webhook at {self.place}", type(error).__name__) from None
        if not answer.is_success:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE if answer.is_server_error else Code.SINK_REFUSED_LOGIN,
                f"the webhook at {self.place} answered {what} with {answer.status_code}",
                hint=f"check the URI of {option}.",
            )


@dataclass(frozen=True, kw_only=True)
class WebhookAlerts(WebhookPlace):
    """A webhook for alerts."""

    alert_format: str | None = setting(
        None,
        "The body of a request: that of Prometheus' Alertmanager, or Slack's.",
        values=("alertmanager", "slack"),
        shown="slack for hooks.slack.com, else alertmanager",
    )
    query: tuple[tuple[str, str], ...] = rest()


class WebhookChannel(AlertChannel):
    """Alerts as a POST: Alertmanager's webhook format, version 4, or a message of Slack."""

    def __init__(self, settings: WebhookAlerts) -> None:
        super().__init__(settings.place, settings.authority)
        self._settings = settings
        by_host = "slack" if settings.uri.host == "hooks.slack.com" else "alertmanager"
        self._slack = (settings.alert_format or by_host) == "slack"

    def send(self, alerts: Sequence[Alert], node: str) -> None:
        body = (
            {"text": "\n".join(map(line, alerts))} if self._slack else _alertmanager(alerts, node)
        )
        self._settings.post(body, "an alert", "--alert", {})


def _alertmanager(alerts: Sequence[Alert], node: str) -> dict[str, object]:
    """https://prometheus.io/docs/alerting/latest/configuration/#webhook_config"""
    firing = any(alert.ended is None for alert in alerts)
    return {
        "version": "4",
        "groupKey": "changefeed",
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": "changefeed",
        "groupLabels": {},
        "commonLabels": {"job": "changefeed"},
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": [_of_alertmanager(alert, node) for alert in alerts],
    }


def _of_alertmanager(alert: Alert, node: str) -> dict[str, object]:
    rule = alert.breach.rule
    labels = {
        "alertname": rule.name,
        "job": "changefeed",
        "instance": node,
        "severity": rule.severity,
        **dict(alert.breach.labels),
    }
    annotations = {"summary": alert.breach.summary, "runbook_url": _RUNBOOK + rule.section}
    if alert.reason:
        annotations["description"] = alert.reason
    return {
        "status": "firing" if alert.ended is None else "resolved",
        "labels": labels,
        "annotations": annotations,
        "startsAt": _moment(alert.began),
        "endsAt": "0001-01-01T00:00:00Z" if alert.ended is None else _moment(alert.ended),
        "generatorURL": "",
        "fingerprint": "/".join([rule.name, *(f"{n}={v}" for n, v in alert.breach.labels)]),
    }


def _moment(wall: int) -> str:
    return Timestamp(wall).datetime().isoformat().replace("+00:00", "Z")


# ------------------------------------------------------------------------------- mail


@dataclass(frozen=True, kw_only=True)
class MailAlerts(ServerSettings):
    """``smtp://``, by STARTTLS if the server has it, and ``smtps://``."""

    called = "mail server"

    authority: Authority = group(Authority)
    sender: str = setting("", "The address that the message is from.", name="from")
    to: str = setting("", "Who gets the message; several with commas.")

    @property
    def port(self) -> int:
        """587, the port of submission, or 465 for smtps."""
        return self.uri.port or (465 if self.uri.scheme == "smtps" else 587)

    def check(self) -> Iterator[ChangefeedError]:
        if len(self.uri.hosts) != 1 or not self.uri.host:
            yield invalid_uri("mail needs one server", f"write {self.uri.scheme}://host?from=..")
        for name, value in (("from", self.sender), ("to", self.to)):
            if "@" not in value or any(ord(character) < 32 for character in value):
                yield invalid(f"{name} must be an address, as {name}=feeds@example.com")


class MailChannel(AlertChannel):
    """Alerts as a mail in plain text."""

    def __init__(self, settings: MailAlerts) -> None:
        super().__init__(str(settings), settings.authority)
        self._settings = settings

    def send(self, alerts: Sequence[Alert], node: str) -> None:
        message = EmailMessage()
        firing = sum(alert.ended is None for alert in alerts)
        counts = [f"{firing} firing"] * bool(firing)
        counts += [f"{len(alerts) - firing} resolved"] * (firing < len(alerts))
        message["Subject"] = f"changefeed on {node}: {', '.join(counts)}"
        message["From"] = self._settings.sender
        message["To"] = self._settings.to
        links = sorted({_RUNBOOK + alert.breach.rule.section for alert in alerts})
        message.set_content("\n".join([*map(line, alerts), "", "What to do:", *links]))
        called = f"the mail server at {self.place}"
        try:
            self._send(message)
        except smtplib.SMTPResponseException as error:
            raise ChangefeedError(
                Code.SINK_REFUSED_LOGIN if error.smtp_code >= 500 else Code.SINK_UNREACHABLE,
                f"{called} refused an alert with {error.smtp_code}",
                hint="check user, password, from and to of --alert.",
            ) from None
        except (smtplib.SMTPException, OSError) as error:
            raise _unreachable(called, type(error).__name__) from None

    def _send(self, message: EmailMessage) -> None:
        its = self._settings
        if its.uri.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                its.host, its.port, timeout=PATIENCE, context=self._tls()
            )
        else:
            server = smtplib.SMTP(its.host, its.port, timeout=PATIENCE)
        with server:
            server.ehlo()
            if its.uri.scheme == "smtp":
                if server.has_extn("starttls"):
                    server.starttls(context=self._tls())
                elif its.user and not names_this_machine(its.host):
                    raise ChangefeedError(
                        Code.SINK_REFUSED_LOGIN,
                        f"the mail server at {self.place} offers no TLS: the password of --alert "
                        "would be read on its way",
                        hint="use smtps:// or a server with STARTTLS.",
                    )
            if its.user:
                server.login(its.user, its.password)
            server.send_message(message)


def _unreachable(called: str, why: str) -> ChangefeedError:
    return ChangefeedError(
        Code.SINK_UNREACHABLE,
        f"{called} does not take an alert: {why}",
        hint="check that it is up, and the URI of --alert.",
    )
