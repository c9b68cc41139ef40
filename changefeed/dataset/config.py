"""``config.yaml`` -> :class:`.model.Dataset`, with an error for all that is not understood."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import require_spark
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

_KEYS = frozenset(
    {
        "name",
        "current_table_path",
        "temp_current_table_path",
        "history_table_path",
        "current_table",
        "history_table",
        "sensitive_table_path",
        "sensitive_table",
        "sensitive_history_table",
        "delimiter",
        "extract_type",
        "columns",
        "format",
        "hash",
        "header",
    }
)
_COLUMN_KEYS = frozenset({"name", "type", "key", "ignore", "nullable", "sensitive"})

#: Atomic types of Spark SQL that a column may be cast to; Spark's parser has the last word.
_TYPES = (
    "string", "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint",
    "long", "float", "real", "double", "decimal", "dec", "numeric", "date", "timestamp",
    "timestamp_ntz", "timestamp_ltz", "binary",
)  # fmt: skip
_TYPE = re.compile(r"(\w+)(\(\s*\d+\s*(,\s*\d+\s*)?\))?\Z")

E = TypeVar("E", bound=StrEnum)


def read_config(path: Path) -> Dataset:
    """The dataset that a YAML file describes.

    Raises:
        ChangefeedError: CF1204 the file cannot be read or says something not understood; CF1203
            a key that is not known; CF4003, the extra ``spark`` is not installed.
    """
    require_spark("changefeed dataset")
    import yaml  # not above: every other statement would load it, too

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"{path} cannot be read: {error.strerror}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"{path} is not valid YAML{where}"
        ) from error
    if not isinstance(content, dict):
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f"{path} is not a mapping of keys to values"
        )
    return _Reader(str(path)).dataset(content)


class _Reader:
    def __init__(self, where: str) -> None:
        self._where = where

    def dataset(self, content: Mapping[str, Any]) -> Dataset:
        self._known(content, _KEYS, self._where)
        current = self._folder(content, "current_table_path")
        temp = content.get("temp_current_table_path")
        versions = (
            current.with_name(current.name + ".versions")
            if temp is None
            else self._folder(content, "temp_current_table_path")
        )
        columns = content.get("columns")
        if not isinstance(columns, list) or not columns:
            raise self._wrong("columns", "a list of columns, each with a name and a type")
        read = tuple(self._column(entry, i) for i, entry in enumerate(columns, 1))
        sensitive = None
        if "sensitive_table_path" in content:
            sensitive = self._folder(content, "sensitive_table_path")
        dataset = Dataset(
            name=self._text(content, "name"),
            columns=read,
            current=current,
            history=self._folder(content, "history_table_path"),
            versions=versions,
            extract=self._choice(content, "extract_type", Extract, Extract.FULL),
            hash=self._choice(content, "hash", Hash, Hash.XXHASH),
            format=self._text(content, "format") if "format" in content else None,
            delimiter=self._text(content, "delimiter") if "delimiter" in content else ",",
            header=self._flag(content, "header", False, self._where),
            current_table=self._table(content, "current_table"),
            history_table=self._table(content, "history_table"),
            sensitive=sensitive_folder(read, current, sensitive),
            sensitive_table=self._table(content, "sensitive_table"),
            sensitive_history_table=self._table(content, "sensitive_history_table"),
        )
        if len({dataset.current, dataset.history, dataset.versions}) < 3:
            raise self._wrong(
                "history_table_path", "a folder of its own, apart from the current dataset"
            )
        try:
            check_columns(dataset)
            check_outputs(dataset)
        except ChangefeedError as error:
            raise ChangefeedError(
                error.code, f"{self._where}: {error.message}", hint=error.hint
            ) from None
        return dataset

    def _column(self, entry: object, number: int) -> DatasetColumn:
        where = f"{self._where}, column {number}"
        if not isinstance(entry, dict):
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE, f"{where}: not a mapping with a name and a type"
            )
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            raise ChangefeedError(Code.INVALID_OPTION_VALUE, f"{where} has no name")
        where = f"{self._where}, column {name}"
        self._known(entry, _COLUMN_KEYS, where)
        kind = column_type(entry.get("type", "string"), where)
        key = self._flag(entry, "key", False, where)
        ignore = self._flag(entry, "ignore", False, where)
        if key and ignore:
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE, f"{where}: a key column cannot be ignored"
            )
        nullable = self._flag(entry, "nullable", not key, where)
        sensitive = self._flag(entry, "sensitive", False, where)
        return DatasetColumn(name, kind, key, ignore, nullable, sensitive)

    def _known(self, entry: Mapping[Any, Any], known: Collection[str], where: str) -> None:
        for key in entry:
            if key in known:
                continue
            close = difflib.get_close_matches(str(key), sorted(known), n=1)
            hint = f"did you mean {close[0]}?" if close else f"keys are: {', '.join(sorted(known))}"
            raise ChangefeedError(Code.UNKNOWN_OPTION, f"{where}: unknown key {key!r}", hint=hint)

    def _text(self, content: Mapping[str, Any], key: str) -> str:
        value = content.get(key)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "text")
        return value

    def _flag(self, entry: Mapping[Any, Any], key: str, default: bool, where: str) -> bool:
        value = entry.get(key, default)
        if not isinstance(value, bool):
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE, f"{where}: {key} must be true or false"
            )
        return value

    def _choice(self, content: Mapping[str, Any], key: str, kind: type[E], default: E) -> E:
        value = content.get(key, default.value)
        try:
            return kind(value)
        except ValueError:
            names = ", ".join(member.value for member in kind)
            raise self._wrong(key, f"one of {names}") from None

    def _folder(self, content: Mapping[str, Any], key: str) -> Path:
        try:
            return local_folder(self._text(content, key))
        except ValueError as error:
            raise self._wrong(key, str(error)) from None

    def _table(self, content: Mapping[str, Any], key: str) -> str | None:
        if key not in content:
            return None
        try:
            return table_name(self._text(content, key))
        except ValueError as error:
            raise self._wrong(key, str(error)) from None

    def _wrong(self, key: str, wanted: str) -> ChangefeedError:
        return ChangefeedError(Code.INVALID_OPTION_VALUE, f"{self._where}: {key} must be {wanted}")


def column_type(kind: object, where: str) -> str:
    """A type that a column may be cast to.

    Raises:
        ChangefeedError: CF1204 it is none; ``where`` begins the message.
    """
    match = _TYPE.match(kind.strip()) if isinstance(kind, str) else None
    if match is None or match[1].lower() not in _TYPES:
        close = difflib.get_close_matches(str(kind).lower(), _TYPES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"{where}: unknown type {kind!r}",
            hint=f"{hint}Types are those of Spark SQL, such as string, bigint, decimal(10,2).",
        )
    return match[0]


def local_folder(text: str) -> Path:
    """A folder as a path or a ``file:`` URI.

    Raises:
        ValueError: it is no folder of this machine.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise ValueError(
            "a folder that this machine and Spark's executors share: file:///path; the switch to "
            "a new version is atomic only there"
        )
    path = Path(unquote(parts.path) if parts.scheme else text)
    return path.absolute()
