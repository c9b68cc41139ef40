"""A dataset as one URI: its columns, its folders, and where its extracts come from.

``dataset:///data/stock?name=stock&columns=id%20bigint&keys=id&location=/in/*.csv``: the path is
the current dataset. FOR DATASET makes such a URI and keeps it as an external connection.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.sql import quoted
from changefeed.core.uri import split_uri
from changefeed.dataset.config import column_type
from changefeed.dataset.extracts import (
    DATE_OF_NAME,
    ExtractSchedule,
    check_schedule,
    effective_date,
)
from changefeed.dataset.model import (
    Dataset,
    DatasetColumn,
    Extract,
    Hash,
    check_columns,
    check_outputs,
    sensitive_folder,
    table_name,
)

SCHEME = "dataset"
E = TypeVar("E", bound=StrEnum)
_PARAMETERS = frozenset(
    {
        "name", "columns", "keys", "ignored", "history", "extract", "hash", "format", "delimiter",
        "header", "location", "secret_location", "every", "date", "current_table", "history_table",
        "sensitive", "sensitive_path", "sensitive_table", "sensitive_history_table",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Definition:
    """A dataset, and the extracts that a node compares it with."""

    dataset: Dataset
    schedule: ExtractSchedule


def is_definition(uri: str) -> bool:
    """The URI defines a dataset; one of a ``config.yaml`` does not."""
    return uri.lower().startswith(f"{SCHEME}:///") and "?" in uri


def uri_of(definition: Definition) -> str:
    """The URI of a definition. It holds what the location holds, passwords too."""
    dataset, schedule = definition.dataset, definition.schedule
    jdbc = schedule.location.startswith("jdbc:")
    parameters = {
        "name": dataset.name,
        "columns": ", ".join(f"{_quoted(c.name)} {c.type}" for c in dataset.columns),
        "keys": ", ".join(_quoted(c.name) for c in dataset.columns if c.key),
        "ignored": ", ".join(_quoted(c.name) for c in dataset.columns if c.ignore),
        "sensitive": ", ".join(_quoted(c.name) for c in dataset.sensitive_columns),
        "history": str(dataset.history),
        "sensitive_path": "" if dataset.sensitive is None else str(dataset.sensitive),
        "extract": dataset.extract.value,
        "hash": dataset.hash.value,
        "format": dataset.format or "",
        "delimiter": "" if dataset.delimiter == "," else dataset.delimiter,
        "header": "" if dataset.header else "no",
        "current_table": dataset.current_table or "",
        "history_table": dataset.history_table or "",
        "sensitive_table": dataset.sensitive_table or "",
        "sensitive_history_table": dataset.sensitive_history_table or "",
        # Drivers have many ways to write a password; listings hide what has such a name.
        "secret_location" if jdbc else "location": schedule.location,
        "every": "" if schedule.every is None else f"{schedule.every:g}",
        "date": "" if schedule.date is None else str(schedule.date),
    }
    query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items() if value)
    return f"{SCHEME}://{quote(str(dataset.current))}?{query}"


def definition_of(uri: str) -> Definition:
    """What a URI defines.

    Raises:
        ChangefeedError: CF1204 a value is wrong or missing, CF1207 a parameter is not known.
    """
    given = dict(split_uri(uri).parameters)
    for name in given:
        if name not in _PARAMETERS:
            raise ChangefeedError(
                Code.INVALID_PARAMETER,
                f"unknown parameter {name} of a dataset",
                hint=f"parameters are: {', '.join(sorted(_PARAMETERS))}.",
            )
    current = Path(unquote(urlsplit(uri).path)).absolute()
    name = _needed(given, "name")
    location = given.get("secret_location") or _needed(given, "location")
    columns = read_columns(_needed(given, "columns"))
    keys, ignored = read_names(_needed(given, "keys")), read_names(given.get("ignored", ""))
    sensitive = read_names(given.get("sensitive", ""))
    dataset = define(
        name,
        marked(columns, keys, ignored, sensitive),
        current,
        history=Path(given["history"]) if "history" in given else None,
        extract=_choice(given, "extract", Extract.FULL),
        hash_=_choice(given, "hash", Hash.XXHASH),
        form=given.get("format"),
        delimiter=given.get("delimiter", ","),
        header=given.get("header", "yes") != "no",
        current_table=_table(given, "current_table"),
        history_table=_table(given, "history_table"),
        sensitive=Path(given["sensitive_path"]) if "sensitive_path" in given else None,
        sensitive_table=_table(given, "sensitive_table"),
        sensitive_history_table=_table(given, "sensitive_history_table"),
    )
    schedule = ExtractSchedule(location, _seconds(given.get("every")), _date(given.get("date")))
    check_schedule(schedule)
    return Definition(dataset, schedule)


def define(
    name: str,
    columns: Sequence[DatasetColumn],
    current: Path,
    *,
    history: Path | None = None,
    extract: Extract = Extract.FULL,
    hash_: Hash = Hash.XXHASH,
    form: str | None = None,
    delimiter: str = ",",
    header: bool = True,
    current_table: str | None = None,
    history_table: str | None = None,
    sensitive: Path | None = None,
    sensitive_table: str | None = None,
    sensitive_history_table: str | None = None,
) -> Dataset:
    """A dataset whose other folders lie beside the current one unless ``history`` or
    ``sensitive`` is given.

    Raises:
        ChangefeedError: CF1204 the columns cannot be compared, or two folders or tables are one.
    """
    dataset = Dataset(
        name,
        tuple(columns),
        current,
        history or current.with_name(current.name + "_history"),
        current.with_name(current.name + ".versions"),
        extract,
        hash_,
        form,
        delimiter,
        header,
        current_table,
        history_table,
        sensitive_folder(columns, current, sensitive),
        sensitive_table,
        sensitive_history_table,
    )
    if len({dataset.current, dataset.history, dataset.versions}) < 3:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            "current and history of a dataset are two folders",
            hint="name another one.",
        )
    check_columns(dataset)
    check_outputs(dataset)
    return dataset


def marked(
    columns: Sequence[DatasetColumn],
    keys: Sequence[str],
    ignored: Sequence[str],
    sensitive: Sequence[str] = (),
) -> tuple[DatasetColumn, ...]:
    """The columns with their roles; names are compared without case.

    Raises:
        ChangefeedError: CF1101 a name is no column, CF1204 a column is in both lists, or
            twice in the key.
    """
    known = {column.name.lower() for column in columns}
    for name in (*keys, *ignored, *sensitive):
        if name.lower() not in known:
            raise ChangefeedError(
                Code.NAME_UNKNOWN,
                f"the extract has no column {name}",
                hint=f"its columns are: {', '.join(c.name for c in columns[:20])}.",
            )
    for i, name in enumerate(keys):
        if name.lower() in (other.lower() for other in keys[:i]):
            raise ChangefeedError(Code.INVALID_OPTION_VALUE, f"key column {name} is named twice")
    key, ignore = {name.lower() for name in keys}, {name.lower() for name in ignored}
    apart = {name.lower() for name in sensitive}
    if both := key & ignore:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"key column {min(both)} cannot be left out"
        )
    return tuple(
        DatasetColumn(
            c.name,
            c.type,
            c.name.lower() in key,
            c.name.lower() in ignore,
            c.name.lower() not in key,
            c.name.lower() in apart,
        )
        for c in columns
    )


def read_columns(text: str) -> tuple[DatasetColumn, ...]:
    """``id bigint, "unit price" decimal(10,2)`` as columns without a role.

    Raises:
        ChangefeedError: CF1204 it is written otherwise, or a type is not known.
    """
    columns = []
    for part in _parts(text):
        name, rest = _name(part)
        if not name or not rest.strip():
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE,
                f"columns cannot be read near {part.strip() or 'a comma'!r}",
                hint="write a name and a type of Spark SQL for each: id bigint, name string.",
            )
        columns.append(DatasetColumn(name, column_type(rest, f"column {name}")))
    return tuple(columns)


def read_names(text: str) -> list[str]:
    """``id, "unit price"`` as names."""
    return [_name(part)[0] for part in _parts(text)] if text.strip() else []


def _parts(text: str) -> Iterator[str]:
    """What stands between commas that are outside of brackets and quotes."""
    depth, quoted, begun = 0, "", 0
    for place, character in enumerate(text):
        if quoted:
            quoted = "" if character == quoted else quoted
        elif character in '"`':
            quoted = character
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "," and not depth:
            yield text[begun:place]
            begun = place + 1
    yield text[begun:]


def _name(part: str) -> tuple[str, str]:
    text = part.strip()
    if text[:1] in ('"', "`"):
        end = text.find(text[0], 1)
        while text[end + 1 : end + 2] == text[0]:
            end = text.find(text[0], end + 2)
        return text[1:end].replace(text[0] * 2, text[0]), text[end + 1 :]
    name, _, rest = text.partition(" ")
    return name, rest


def _quoted(name: str) -> str:
    plain = name.replace("_", "a").isalnum()
    return name if plain else quoted(name)


def _needed(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"the URI of the dataset has no parameter {name}"
        )
    return given[name]


def _table(given: Mapping[str, str], name: str) -> str | None:
    if name not in given:
        return None
    try:
        return table_name(given[name])
    except ValueError as error:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"{name} of the dataset must be {error}"
        ) from None


def _choice(given: Mapping[str, str], name: str, usual: E) -> E:
    value = given.get(name, usual.value)
    try:
        return type(usual)(value)
    except ValueError:
        known = ", ".join(member.value for member in type(usual))
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"{name} of the dataset must be one of {known}"
        ) from None


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, "every of the dataset is a number of seconds"
        ) from None


def _date(text: str | None) -> dt.date | str | None:
    if text is None or text == DATE_OF_NAME:
        return text
    return effective_date(text)
