"""What Debezium and drivers say -> our errors.

Only known phrases and SQL states decide; the words of a driver go into the detail with whatever
looks like a secret or a row left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from changefeed.core.errors import ChangefeedError, Code


@dataclass(frozen=True, slots=True)
class Cause:
    """One exception of a chain: its class, its words, and what an SQLException has besides."""

    kind: str
    message: str
    state: str | None = None
    number: int | None = None


#: Phrase -> code and message, the first that is found decides.
_PHRASES: tuple[tuple[str, str, str], ...] = (
    (
        r"no longer available on the server|Could not find first log file|"
        r"has been purged|purged required (?:binary logs|GTID)|"
        r"state requested by (?:slave|replica) in any binlog files|"
        r"replication slot .* does not exist|can no longer get changes from replication slot|"
        r"no longer accessible|ORA-01291|ORA-00308|"
        r"is not in the valid range of LSN|insufficient number of arguments .*cdc|"
        r"ChangeStreamHistoryLost|InvalidResumeToken|ChangeStreamFatalError",
        Code.SOURCE_LOG_GONE,
        "the source no longer has the log that was not read yet",
    ),
    (
        r"Access denied for user|password authentication failed|Login failed for user|ORA-01017|"
        r"no password was provided|Unknown initial character set|28000|ERRORCODE=-4214|"
        r"AuthenticationFailed|Exception authenticating",
        Code.SOURCE_REFUSED_LOGIN,
        "the source refused the login",
    ),
    (
        r"Communications link failure|Connection refused|Socket fail to connect|"
        r"Could not connect to|The TCP/IP connection to the host|IO Error|"
        r"Unable to connect|UnknownHostException|connect timed out|SocketTimeoutException|"
        r"ERRORCODE=-4499|Timed out (?:after \d+ ms )?while waiting for a server|"
        r"Failed looking up (?:SRV|TXT) record",
        Code.SOURCE_UNREACHABLE,
        "the source cannot be reached",
    ),
    (
        r"must be superuser or replication role|permission denied|command denied|ORA-01031|"
        r"you need \(at least one of\) the|is not able to access|SQLCODE=-551|"
        r"\(Unauthorized\)",
        Code.SOURCE_PERMISSION_MISSING,
        "a right is missing at the source",
    ),
    (
        r"binlog_format|binlog_row_image|wal_level|is not enabled for CDC|No CDC|"
        r"ARCHIVELOG|supplemental log|not configured to use a row-level binlog|"
        r"\$changeStream stage is only supported on replica sets|Replica set not specified",
        Code.SOURCE_NOT_SET_UP,
        "the source is not set up for Debezium",
    ),
    (
        r"is active for PID|lock wait timeout|Lock wait timeout exceeded",
        Code.SOURCE_BUSY,
        "the source is busy",
    ),
)
#: What the driver of MongoDB says where this Java has no part that asks the name service.
_NO_DNS = "DnsContextFactory"
_SECRETS = re.compile(r"(?i)(password|pwd|secret|token)\W{0,3}[^\s,;)&]+")
_ROWS = re.compile(r"(?i)(?:value|row|record|struct)s?\s*[\[{(].*")


def failure(causes: Sequence[Cause]) -> ChangefeedError:
    """The error that a chain of exceptions stands for."""
    words = " | ".join(cause.message for cause in causes)
    detail = _said(causes)
    for phrase, code, message in _PHRASES:
        if re.search(phrase, words):
            return ChangefeedError(code, message, detail=detail)
    states = [cause.state or "" for cause in causes]
    if any(state.startswith("28") for state in states):
        return ChangefeedError(
            Code.SOURCE_REFUSED_LOGIN, "the source refused the login", detail=detail
        )
    if any(state.startswith("08") for state in states):
        return ChangefeedError(
            Code.SOURCE_UNREACHABLE, "the source cannot be reached", detail=detail
        )
    if any("NoClassDefFound" in c.kind or "ClassNotFound" in c.kind for c in causes):
        return ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            "a class that Debezium's connector needs is missing",
            detail=detail,
            hint="the jars of the pack are incomplete: see docs/source-debezium.md.",
        )
    if _NO_DNS in words:
        return ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            "this Java cannot ask the name service, as a URI mongodb+srv:// needs it",
            detail=detail,
            hint="install a JDK 17 or 21 (the Java out of a wheel lacks jdk.naming.dns), or write"
            " the hosts into a URI mongodb://.",
        )
    return ChangefeedError(Code.STREAM_BROKE, "Debezium's engine failed", detail=detail)


def _said(causes: Sequence[Cause]) -> str:
    """The last cause, which says most, without rows and secrets."""
    last = causes[-1] if causes else Cause("", "")
    text = _ROWS.sub(
        "..", _SECRETS.sub(r"\1 ..", last.message.splitlines()[0] if last.message else "")
    )
    return f"{last.kind.rpartition('.')[2]}: {text}"[:300]
