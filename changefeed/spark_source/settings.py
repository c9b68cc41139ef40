"""The options of the format ``changefeed``, checked and typed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.uri import redact
from changefeed.readers.own_state import ReaderSource
from changefeed.readers.reader import Start, moment, version
from changefeed.readers.table_log import RANGE_ROWS, OnTruncate
from changefeed.spark.staging_place import staging_place

#: The prefix of the name of an environment variable that has a URL.
VARIABLE = "env:"

#: Parameters of a staging place that no plan may show.
_SECRETS = frozenset({"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})

EARLIEST, LATEST = "earliest", "latest"

KNOWN = (
    "source",
    "state",
    "table",
    "reader",
    "initialScan",
    "startingVersion",
    "endingVersion",
    "startingTimestamp",
    "endingTimestamp",
    "schemaChange",
    "truncate",
    "maxRowsPerTrigger",
    "rowsPerPartition",
    "staging",
)


class OnSchemaChange(StrEnum):
    """What a query does when rows have columns that it does not know."""

    FAIL = "fail"
    IGNORE = "ignore"


C = TypeVar("C", bound=StrEnum)


@dataclass(frozen=True)
class SparkSourceSettings:
    """Attributes are the options; see docs/spark-source.md.

    Attributes:
        source: the source, if the query names one; ``table`` may then lack its connection.
        after: the query reads above it; None: ``initial_scan`` decides where it begins.
        earliest: begin where the log begins.
        latest: begin with the next change.
        upto: the query reads up to it; None: to the end of the log.
    """

    state: str
    source: ReaderSource | None
    table: str
    reader: str
    initial_scan: bool
    after: Timestamp | None
    earliest: bool
    latest: bool
    upto: Timestamp | None
    on_schema_change: OnSchemaChange
    on_truncate: OnTruncate
    max_rows: int | None
    range_rows: int
    staging: str = ""

    def __repr__(self) -> str:
        # State, source and staging place may be URLs with a password.
        return f"Settings(table={self.table!r}, reader={self.reader!r})"

    def located(self) -> SparkSourceSettings:
        """The settings with the state's connection to the source in the table's name.

        State and connection are created if they do not exist.

        Raises:
            ChangefeedError: see :meth:`changefeed.readers.own_state.ReaderSource.connect`.
        """
        if self.source is None:
            return self
        connection = self.source.connect()
        return replace(self, table=self.source.table(self.table, connection))

    @property
    def from_log(self) -> bool:
        """Whether the query reads changes of a certain time, not the table as it is."""
        return self.earliest or self.latest or self.after is not None or self.upto is not None

    @property
    def start(self) -> Start:
        """Where a new reader begins."""
        return Start(self.initial_scan, self.after)


def settings_of(options: Mapping[str, str]) -> SparkSourceSettings:
    """Read the options of a query.

    Raises:
        ChangefeedError: CF1203 an unknown option, CF1204 an invalid value, CF1205 options that
            contradict each other.
    """
    given = _named(options)
    state, source = _place(given)
    table, reader = given.get("table", ""), given.get("reader", "")
    if not table and not reader:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "neither the option table nor the option reader is given",
            hint="for example .option('table', 'public.orders')."
            if source
            else "for example .option('table', 'shop.public.orders').",
        )
    starting, after = _starting(given)
    scan = _flag(given, "initialScan", default=not starting)
    if scan and starting:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            f"initialScan and {starting} contradict each other: give one of them",
        )
    upto = _ending(given)
    if after is not None and upto is not None and upto <= after:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            f"the end is before {starting}: there is nothing between them",
            hint="give an ending version or timestamp that is not before the starting one.",
        )
    return SparkSourceSettings(
        state=state,
        source=source,
        table=table,
        reader=reader,
        initial_scan=scan,
        after=after,
        earliest=given.get("startingVersion", "").lower() == EARLIEST,
        latest=given.get("startingVersion", "").lower() == LATEST,
        upto=upto,
        on_schema_change=_choice(given, "schemaChange", OnSchemaChange),
        on_truncate=_choice(given, "truncate", OnTruncate),
        max_rows=_count(given, "maxRowsPerTrigger"),
        range_rows=_count(given, "rowsPerPartition") or RANGE_ROWS,
        staging=_staging(given),
    )


def _of_variable(given: Mapping[str, str], option: str) -> tuple[str, bool]:
    """The text of an option, and whether an environment variable had it: then no plan shows it."""
    text = given.get(option, "")
    if not text.startswith(VARIABLE):
        return text, False
    name = text.removeprefix(VARIABLE)
    text = os.environ.get(name, "")
    if not text:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            f"option {option}: the driver has no environment variable {name}",
            hint="set it before Spark starts.",
        )
    return text, True


def _shown(option: str) -> ChangefeedError:
    return ChangefeedError(
        Code.OPTIONS_CONTRADICT,
        f"option {option}: a URL with a password would show in Spark's plans",
        hint="put the URL into an environment variable of the driver and give 'env:NAME' as the "
        "option.",
    )


def _staging(given: Mapping[str, str]) -> str:
    """Refuses a place whose keys Spark would print with its plans."""
    text, hidden = _of_variable(given, "staging")
    if text:
        place = staging_place(text)
        if not hidden and place.s3 is not None and _SECRETS & place.s3.given:
            raise _shown("staging")
    return text


def _place(given: Mapping[str, str]) -> tuple[str, ReaderSource | None]:
    state, uri = _url(given, "state"), _url(given, "source")
    if uri:
        source = ReaderSource.of(uri, state)
        return source.state, source
    if not state:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "neither the option source nor the option state is given",
            hint="source is the URL of a database; state is the directory or URL of a state that "
            "a node runs, as changefeed --state has it.",
        )
    return state, None


def _url(given: Mapping[str, str], option: str) -> str:
    """Refuses a URL whose password Spark would print with its plans."""
    text, hidden = _of_variable(given, option)
    if not hidden and "://" in text and redact(text) != text:
        raise _shown(option)
    return text


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """The options in their usual spelling: Spark ignores case."""
    spelling = {name.lower(): name for name in KNOWN}
    given: dict[str, str] = {}
    for name, value in options.items():
        usual = spelling.get(name.lower())
        if usual is None:
            near = difflib.get_close_matches(name.lower(), spelling, n=1)
            raise ChangefeedError(
                Code.UNKNOWN_OPTION,
                f"the format changefeed has no option {name}",
                hint=f"did you mean {spelling[near[0]]}?" if near else f"known: {', '.join(KNOWN)}",
            )
        given[usual] = value
    return given


def _starting(given: Mapping[str, str]) -> tuple[str, Timestamp | None]:
    """The option that says where to begin, and the timestamp before it."""
    if "startingVersion" in given and "startingTimestamp" in given:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "startingVersion and startingTimestamp contradict each other: give one",
        )
    if "startingTimestamp" in given:
        at = moment(given["startingTimestamp"], "startingTimestamp")
        return "startingTimestamp", at.previous()
    if "startingVersion" not in given:
        return "", None
    text = given["startingVersion"]
    if text.lower() in (EARLIEST, LATEST):
        return "startingVersion", None
    return "startingVersion", version(text, "startingVersion").previous()


def _ending(given: Mapping[str, str]) -> Timestamp | None:
    if "endingVersion" in given and "endingTimestamp" in given:
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "endingVersion and endingTimestamp contradict each other: give one",
        )
    if "endingVersion" in given:
        return version(given["endingVersion"], "endingVersion")
    if "endingTimestamp" in given:
        # The whole microsecond that _commit_timestamp shows.
        at = moment(given["endingTimestamp"], "endingTimestamp")
        return Timestamp(at.wall + 999, Timestamp.MAX.logical)
    return None


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"option {name}: {given[name]!r} is not true or false"
        )
    return text == "true"


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"option {name}: {text!r} is no number of rows"
        )
    return int(text)


def _choice(given: Mapping[str, str], name: str, kind: type[C]) -> C:
    known = list(kind)
    text = given.get(name, known[0].value).lower()
    for value in known:
        if value == text:
            return value
    raise ChangefeedError(
        Code.INVALID_OPTION_VALUE, f"option {name}: {given[name]!r} is none of {', '.join(known)}"
    )
