"""The options of FOR DATASET that describe an extract; the others are those of a feed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field

from changefeed.core.clock import SystemClock
from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.quantities import parse_duration
from changefeed.dataset.definition import read_names
from changefeed.dataset.extracts import DATE_OF_NAME, effective_date
from changefeed.dataset.model import Extract, Hash, table_name
from changefeed.options import OptionReader, to_span
from changefeed.plan.own_options import split_options
from grammar import nodes
from grammar.spelling import did_you_mean

#: Name -> the values, if there is a list of them, and its meaning.
DATASET_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "extract": (("full", "delta"), "An extract holds all rows, or those that may have changed."),
    "every": ((), "How often to compare; without it, when files have changed."),
    "effective_date": ((), "A date, or 'name': the date in an extract's name. Usually today."),
    "columns": ((), "Names and types; read from the first extract when not given."),
    "current_path": ((), "The folder of the current dataset."),
    "history_path": ((), "The folder of the history; beside the current dataset when not given."),
    "current_table": (
        (),
        "The table of Spark's catalog that shows the current dataset: db.orders.",
    ),
    "history_table": ((), "The table of Spark's catalog that shows the history."),
    "sensitive": ((), "Columns that are kept apart from the others, joined by the key."),
    "sensitive_path": ((), "The folder of the sensitive columns; beside the current dataset."),
    "sensitive_table": ((), "The table of Spark's catalog that shows the sensitive columns."),
    "sensitive_history_table": ((), "The table of Spark's catalog that shows their history."),
    "hash": (("xxhash", "md5"), "How rows are compared."),
    "extract_format": (
        ("csv", "parquet", "orc", "json"),
        "By the names of the files if not given.",
    ),
    "extract_delimiter": ((), "What separates the values of CSV: a comma when not given."),
    "extract_header": (("yes", "no"), "Whether the first line of CSV names the columns."),
}

_FOLDERS = ("current_path", "history_path", "sensitive_path")
#: Options that name a table of Spark's catalog.
TABLE_OPTIONS = ("current_table", "history_table", "sensitive_table", "sensitive_history_table")


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """The values of :data:`DATASET_OPTIONS`, and the feed's own options, unchecked.

    Attributes:
        every: seconds.
        date: None: the day of each comparison.
        folders: ``current_path`` and the like as written, if given.
        tables: ``current_table`` and the like as ``database.table``, if given.
        sensitive: names of columns.
    """

    extract: Extract = Extract.FULL
    every: float | None = None
    date: dt.date | str | None = None
    columns: str | None = None
    folders: dict[str, str] = field(default_factory=dict)
    hash: Hash = Hash.XXHASH
    form: str | None = None
    delimiter: str = ","
    header: bool = True
    tables: dict[str, str] = field(default_factory=dict)
    sensitive: tuple[str, ...] = ()
    others: tuple[nodes.Option, ...] = ()


def parse_dataset_options(options: Sequence[nodes.Option], *, text: str = "") -> DatasetOptions:
    """Check the options of the extract; those of the feed are returned unchecked.

    Raises:
        ChangefeedError: as :func:`changefeed.options.parse_options`.
    """
    reading = OptionReader(SystemClock(), text)
    given, others = split_options(options, DATASET_OPTIONS, reading)
    for name, value in given.items():
        _check_choice(name, value, reading)
    every = _every(given.get("every"), reading)
    date = _date(given.get("effective_date"), reading)
    named = {name: _table(given[name], name, reading) for name in TABLE_OPTIONS if name in given}
    tables = {name: table for name, table in named.items() if table is not None}
    for name in ("sensitive_path", "sensitive_table", "sensitive_history_table"):
        if name in given and "sensitive" not in given:
            reading.problem(
                Code.OPTIONS_CONTRADICT,
                f"option {name} needs the option sensitive",
                to_span(given[name].span),
                "name the columns: sensitive = 'ssn, email'.",
            )
    raise_all(reading.problems)
    words = {name: value.text.strip() for name, value in given.items()}
    return DatasetOptions(
        Extract(words.get("extract", "full").lower()),
        every,
        date,
        words.get("columns"),
        {name: words[name] for name in _FOLDERS if name in words},
        Hash(words.get("hash", "xxhash").lower()),
        words.get("extract_format", "").lower() or None,
        given["extract_delimiter"].text if "extract_delimiter" in given else ",",
        words.get("extract_header", "yes").lower() == "yes",
        tables,
        tuple(read_names(words.get("sensitive", ""))),
        others,
    )


def _check_choice(name: str, value: nodes.Literal, reading: OptionReader) -> None:
    known = DATASET_OPTIONS[name][0]
    if known and value.text.strip().lower() not in known:
        near = did_you_mean(value.text, known)
        reading.problem(
            Code.INVALID_OPTION_VALUE,
            f"unknown {name}: {value.text}, valid values are {', '.join(known)}",
            to_span(value.span),
            f"did you mean {near}?" if near else "",
        )


def _every(value: nodes.Literal | None, reading: OptionReader) -> float | None:
    if value is None:
        return None
    try:
        seconds = parse_duration(value.text)
        if seconds > 0:
            return seconds
    except ValueError:
        seconds = 0
    reading.problem(
        Code.INVALID_OPTION_VALUE,
        f'"{value.text}" is no interval',
        to_span(value.span),
        "write every = '1h'.",
    )
    return None


def _table(value: nodes.Literal, name: str, reading: OptionReader) -> str | None:
    try:
        return table_name(value.text)
    except ValueError as error:
        reading.problem(
            Code.INVALID_OPTION_VALUE, f"option {name} must be {error}", to_span(value.span)
        )
        return None


def _date(value: nodes.Literal | None, reading: OptionReader) -> dt.date | str | None:
    if value is None or value.text == DATE_OF_NAME:
        return None if value is None else DATE_OF_NAME
    try:
        return effective_date(value.text)
    except ChangefeedError as error:
        error.span = to_span(value.span)
        reading.problems.append(error)
        return None
