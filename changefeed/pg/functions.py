"""PostgreSQL's functions that clients call when they look around, for SQLite."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.pg.pg_catalog import DATABASE, type_name, type_oid
from changefeed.pg.variables import VERSION, Variables

#: Characters of a span of time that are read.
_LONGEST_SPAN = 100
#: Numbers of a series.
_LONGEST_SERIES = 10_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What functions know: the client, its settings, relations by name, and the time."""

    user: str
    variables: Variables
    relations: Mapping[str, int]
    now: float


def zone_free(text: str) -> str | None:
    """A moment of any ISO form as views keep it: in UTC, without the zone."""
    try:
        moment = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError:
        return None
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"


def _moment(value: Any) -> Any:
    if isinstance(value, int | float):
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S.%f}"
    return None if value is None else zone_free(str(value))


def _trunc(unit: str, moment: Any) -> str | None:
    """The beginning of the second, minute, hour, day, week, month or year."""
    text, unit = _moment(moment), unit.lower()
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    if unit == "week":
        at, unit = at - timedelta(days=at.weekday()), "day"
    kept = _PARTS[: _PARTS.index(unit) + 1]
    start = datetime(1, 1, 1).replace(**{part: getattr(at, part) for part in kept})
    return f"{start:%Y-%m-%d %H:%M:%S.%f}"


_PARTS = ("year", "month", "day", "hour", "minute", "second")


def _between(end: Any, start: Any) -> float | None:
    """Seconds."""
    moments = _moment(end), _moment(start)
    if None in moments:
        return None
    last, first = (datetime.fromisoformat(str(moment)) for moment in moments)
    return (last - first).total_seconds()


_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-z]+)", re.I)


def _seconds(text: Any) -> float | None:
    """``1 hour 30 minutes``; None for what is no such span."""
    total, found = 0.0, False
    for number, unit in _SPAN.findall(str(text)[:_LONGEST_SPAN]):
        unit = unit.lower()
        short = "min" if unit.startswith("min") or unit == "m" else unit[0]
        if short not in _UNITS:
            return None
        total, found = total + float(number) * _UNITS[short], True
    return total if found else None


def _shift(moment: Any, seconds: Any, sign: int) -> str | None:
    text = _moment(moment)
    if text is None or seconds is None:
        return None
    moved = datetime.fromisoformat(text) + timedelta(seconds=sign * float(seconds))
    return f"{moved:%Y-%m-%d %H:%M:%S.%f}"


def _extract(part: str, moment: Any) -> float | None:
    if isinstance(moment, int | float) and part.lower() == "epoch":
        return float(moment)
    text = _moment(moment)
    if text is None:
        return None
    at = datetime.fromisoformat(text).replace(tzinfo=UTC)
    if part.lower() == "epoch":
        return at.timestamp()
    return float(getattr(at, part.lower(), None) or 0)


def _matches(text: Any, pattern: Any, ignore_case: bool = False) -> int | None:
    """By RE2, which is done in linear time whatever the pattern is."""
    if text is None or pattern is None:
        return None
    found = pc.match_substring_regex(
        pa.scalar(str(text)), pattern=str(pattern), ignore_case=ignore_case
    )
    return int(found.as_py())


def _any(value: Any, array: Any) -> int | None:
    if value is None or array is None:
        return None
    text = str(array)
    each = json.loads(text) if text.startswith("[") else text.strip("{}").split(",")
    return int(any(str(one) == str(value) for one in each))


def _joined(array: Any, separator: Any) -> str | None:
    return None if array is None else str(separator).join(map(str, json.loads(str(array))))


def _elements(array: Any) -> list[Any]:
    found = json.loads(str(array or "[]"))
    return found if isinstance(found, list) else []


def _item(array: Any, place: Any) -> Any:
    found = _elements(array)
    return found[place] if isinstance(place, int) and 0 <= place < len(found) else None


def _series(start: Any, end: Any) -> str:
    if int(end or 0) - int(start or 0) > _LONGEST_SERIES:
        raise ValueError("a series is too long")
    return json.dumps(list(range(int(start or 0), int(end or 0) + 1)))


def _quote_ident(name: Any) -> Any:
    plain = name is None or re.fullmatch(r"[a-z_][a-z0-9_$]*", str(name))
    return name if plain else '"' + str(name).replace('"', '""') + '"'


def _parse_ident(name: Any) -> str:
    return json.dumps([part.strip('"') for part in str(name).split(".")])


def _split(text: Any, separator: Any) -> str | None:
    return None if text is None else json.dumps(str(text).split(str(separator)))


def _bool(value: Any) -> int | None:
    return None if value is None else int(str(value).lower() in ("1", "t", "true", "on", "yes"))


def _relation(around: Surroundings) -> Callable[[Any], int | None]:
    def oid(name: Any) -> int | None:
        if isinstance(name, int) or name is None:
            return name
        text = str(name).replace('"', "")
        return int(text) if text.isdigit() else around.relations.get(text.rpartition(".")[2])

    return oid


def _relation_name(around: Surroundings) -> Callable[[Any], str]:
    names = {oid: name for name, oid in around.relations.items()}
    return lambda oid: names.get(oid, str(oid))


Maker = Callable[[Surroundings], Callable[..., Any]]


def _always(value: Any) -> Maker:
    return lambda _: lambda *arguments: value


def _same(function: Callable[..., Any]) -> Maker:
    return lambda _: function


def _set_config(around: Surroundings) -> Callable[..., Any]:
    def apply(name: str, value: Any, local: Any) -> Any:
        around.variables.set(name, None if value is None else str(value))
        return value

    return apply


#: Name -> number of arguments (-1: any), and what makes the function for a client.
FUNCTIONS: dict[str, tuple[int, Maker]] = {
    "_pg_expandarray": (1, _always(None)),
    "array_lower": (2, _always(1)),
    "array_to_string": (2, _same(_joined)),
    "array_upper": (2, _same(lambda array, _: len(_elements(array)) or None)),
    "col_description": (2, _always(None)),
    "current_database": (0, _always(DATABASE)),
    "current_schema": (0, _always("public")),
    "current_schemas": (1, _always('["pg_catalog", "public"]')),
    "current_setting": (-1, lambda around: lambda name, *_: around.variables.get(str(name))),
    "format_type": (2, _same(lambda oid, _: type_name(oid))),
    "has_schema_privilege": (-1, _always(1)),
    "has_table_privilege": (-1, _always(1)),
    "json_build_object": (-1, _always(None)),
    "obj_description": (-1, _always(None)),
    "pg_advisory_unlock_all": (0, _always("")),
    "parse_ident": (1, _same(_parse_ident)),
    "pg_any": (2, _same(_any)),
    "pg_backend_pid": (0, _always(os.getpid())),
    "pg_between": (2, _same(_between)),
    "pg_bool": (1, _same(_bool)),
    "pg_collation_is_visible": (1, _always(1)),
    "pg_day": (1, _same(lambda moment: (_moment(moment) or "")[:10] or None)),
    "pg_encoding_to_char": (1, _always("UTF8")),
    "pg_extract": (2, _same(_extract)),
    "pg_function_is_visible": (1, _always(1)),
    "pg_get_constraintdef": (-1, _always(None)),
    "pg_get_expr": (-1, _always(None)),
    "pg_get_function_arguments": (1, _always("")),
    "pg_get_function_result": (1, _always("")),
    "pg_get_indexdef": (-1, _always(None)),
    "pg_get_partkeydef": (1, _always(None)),
    "pg_get_userbyid": (1, _always("changefeed")),
    "pg_get_viewdef": (-1, _always("")),
    "pg_get_serial_sequence": (2, _always(None)),
    "pg_get_statisticsobjdef_columns": (-1, _always("")),
    "pg_is_in_recovery": (0, _always(0)),
    "pg_item": (2, _same(_item)),
    "pg_moment": (1, _same(_moment)),
    "pg_no_list": (0, _always("[]")),
    "pg_now": (0, lambda around: lambda: _moment(around.now)),
    "pg_regclass": (1, _relation),
    "pg_regclass_name": (1, _relation_name),
    "pg_regnamespace": (1, _same(lambda name: name)),
    "pg_regnamespace_name": (1, _same(lambda oid: oid)),
    "pg_regproc": (1, _same(lambda name: name)),
    "pg_regproc_name": (1, _same(lambda name: name)),
    "pg_regrole": (1, _same(lambda name: name)),
    "pg_regtype": (1, _same(type_oid)),
    "pg_regtype_name": (1, _same(type_name)),
    "pg_relation_is_publishable": (1, _always(0)),
    "pg_relation_size": (-1, _always(None)),
    "pg_seconds": (1, _same(_seconds)),
    "pg_series": (2, _same(_series)),
    "pg_shift": (3, _same(_shift)),
    "pg_table_is_visible": (1, _always(1)),
    "pg_today": (0, lambda around: lambda: str(_moment(around.now))[:10]),
    "pg_total_relation_size": (-1, _always(None)),
    "pg_trunc": (2, _same(_trunc)),
    "pg_type_is_visible": (1, _always(1)),
    "pg_user": (0, lambda around: lambda: around.user),
    "pg_version": (0, _always(f"PostgreSQL {VERSION}")),
    "quote_ident": (1, _same(_quote_ident)),
    "regexp_ilike": (2, _same(lambda text, pattern: _matches(text, pattern, True))),
    "regexp_like": (2, _same(_matches)),
    "set_config": (3, _set_config),
    "shobj_description": (-1, _always(None)),
    "string_to_array": (2, _same(_split)),
    "to_regclass": (1, _relation),
    "to_regtype": (1, _same(lambda name: type_oid(name) or None)),
    "version": (0, _always(f"PostgreSQL {VERSION}")),
}
