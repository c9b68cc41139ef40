"""What fits at a place of a statement: the grammar's kinds filled with names, options, values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.core.errors import ChangefeedError
from changefeed.options import OPTIONS, SinkAbilities, rows_of
from changefeed.options.docs import MEANINGS, listing
from grammar.printer import name as name_sql
from grammar.suggest import Suggestions

if TYPE_CHECKING:
    from changefeed.api import FeedFacts, Parameter
    from shell.repl.names import NameCache

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")

#: The schema that a table without one is looked for in.
DEFAULT_SCHEMA = "public"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that fits: its text, and a word about it.

    Attributes:
        text: what is shown and matched.
        meta: a sentence or a word about it.
        string: the text belongs in single quotes.
        literal: the text stands as it is (numbers, URIs that are only begun).
        insert: what is put there, where that is not the text as it must be quoted.
    """

    text: str
    meta: str = ""
    string: bool = False
    literal: bool = False
    insert: str = ""


def choices(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    """Everything that fits at a place, whatever is typed there already."""
    for kind in sorted(fits.kinds):
        fill = _FILLERS.get(kind)
        yield from fill(fits, known) if fill else ()


# ------------------------------------------------------------------------ names


def _connections(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    schemes = known.schemes()
    for name in known.connections():
        yield Candidate(name, f"{schemes.get(name, '')} connection".strip())


def _functions(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    yield from (Candidate(name, signature) for name, signature in known.functions().items())


def _schedules(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    yield from (Candidate(name, recurring) for name, recurring in known.schedules().items())


def _recurrences(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    from changefeed.api import SCHEDULE_TIMES

    yield from (Candidate(name, fields, string=True) for name, fields in SCHEDULE_TIMES.items())


def _users(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    yield from (Candidate(name, "user") for name in known.users())


def _roles(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    from changefeed.api import USER_OPTIONS

    yield from (Candidate(name, "role") for name in USER_OPTIONS["role"][0])


#: Verb -> the statuses of the feeds that it does something for.
_WORTH = {
    "PAUSE": frozenset({"starting", "scanning", "running", "degraded", "retrying", "stalled"}),
    "RESUME": frozenset({"paused", "failed", "degraded", "stopped"}),
}


#: Verbs of statements that name tables of a feed.
_OF_FEED = (*_WORTH, "VERIFY")


def _fitting(fits: Suggestions, known: NameCache) -> list[FeedFacts]:
    left = [feed for feed in known.feeds() if feed.name not in fits.feeds]
    worth = _WORTH.get(fits.verb)
    return [feed for feed in left if feed.status in worth] or left if worth else left


def _feeds(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    yield from (Candidate(feed.name, feed.status) for feed in _fitting(fits, known))


def _job_ids(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    if "feed" in fits.kinds:
        return  # the names are there already
    for feed in _fitting(fits, known):
        yield Candidate(str(feed.job_id), f"{feed.name}, {feed.status}", literal=True)


def _feed(fits: Suggestions, known: NameCache) -> FeedFacts | None:
    if not fits.action and fits.verb not in _OF_FEED:
        return None
    return next((feed for feed in known.feeds() if feed.name == fits.feed), None)


def _table(schema: str, name: str) -> Candidate:
    """A table by its own name where that finds it, else with its schema."""
    if schema == DEFAULT_SCHEMA:
        return Candidate(name, schema)
    return Candidate(name, schema, insert=f"{name_sql(schema)}.{name_sql(name)}")


def _tables(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    """Tables of the source, schemas, and connections: the parts of a dotted name."""
    feed = _feed(fits, known) if fits.action == "DROP" or fits.verb in _OF_FEED else None
    if feed is not None:
        watched = [t for t in feed.tables if not fits.path or t[0] == fits.path[-1]]
        whole = [Candidate(name, schema) for schema, name in watched]
        yield from whole if fits.path else (_table(*table) for table in watched)
        return
    connections = known.connections()
    path = list(fits.path)
    source = fits.source
    if path and path[0] in connections:
        source = path.pop(0)
    tables = known.tables(source)
    if path:
        yield from (Candidate(name, schema) for schema, name in tables if schema == path[0])
        return
    yield from (_table(schema, name) for schema, name in tables)
    yield from (Candidate(schema, "schema") for schema in sorted({schema for schema, _ in tables}))
    if not fits.path:
        yield from (Candidate(name, "connection") for name in connections)


def _schemas(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    source = fits.path[0] if fits.path else fits.source
    yield from (
        Candidate(name, "schema") for name in sorted({schema for schema, _ in known.tables(source)})
    )


def _columns(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    if fits.table:
        yield from (Candidate(*column) for column in known.columns(fits.table, fits.source))


def _partitions(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    if fits.table:
        names = known.partitions(fits.table, fits.source)
        yield from (Candidate(name, "partition") for name in names)


# ------------------------------------------------------------------------ options


def sink_scheme(fits: Suggestions, known: NameCache) -> str | None:
    """The scheme of the statement's sink, as far as it is known."""
    feed = _feed(fits, known)
    if fits.sink is None and feed is not None:
        return feed.scheme or None
    if not fits.sink:
        return None
    scheme, _, rest = fits.sink.partition("://")
    if scheme.lower() != "external":
        return scheme.lower()
    return known.schemes().get(rest.partition("?")[0])


def _options(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    feed = _feed(fits, known)
    for row in listing(_abilities(fits, known)):
        if row.name in fits.given or (feed is not None and not row.alterable):
            continue
        if feed is not None and fits.action == "UNSET" and row.name not in feed.options:
            continue
        default = f" [{row.default}]" if row.default else ""
        yield Candidate(row.name, f"{row.summary}{default}")


def _connection_options(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    from changefeed.api import CONNECTION_OPTIONS

    for name, (_, meta) in CONNECTION_OPTIONS.items():
        if name not in fits.given:
            yield Candidate(name, meta)


def _user_options(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    from changefeed.api import USER_OPTIONS

    for name, (_, meta) in USER_OPTIONS.items():
        if name not in fits.given:
            yield Candidate(name, meta)


def _schedule_options(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    from changefeed.api import SCHEDULE_OPTIONS

    for name, (_, meta) in SCHEDULE_OPTIONS.items():
        if name not in fits.given:
            yield Candidate(name, meta)


def _cdc_options(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    for name, meta in _CDC.items():
        if name not in fits.given:
            yield Candidate(name, meta)


def _dataset_options(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    from changefeed.api import DATASET_OPTIONS

    for name, (_, meta) in DATASET_OPTIONS.items():
        if name not in fits.given:
            yield Candidate(name, meta)
    yield from _options(fits, known)


_CDC = {
    "cluster_address": "address of the broker",
    "topic": "topic of the messages",
    "index": "index of the documents",
    "record": "AFTER, CHANGE or ALL",
}

#: The first value of an example: a string, or what stands before the next option.
_EXAMPLE = re.compile(r"=\s*(?:'((?:[^']|'')*)'|([^,]*))")


def _option_values(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    row = rows_of(_abilities(fits, known)).get(fits.option or "") or OPTIONS.get(fits.option or "")
    if row is None:
        from changefeed.api import (
            CONNECTION_OPTIONS,
            DATASET_OPTIONS,
            SCHEDULE_OPTIONS,
            USER_OPTIONS,
        )

        own = CONNECTION_OPTIONS | DATASET_OPTIONS | SCHEDULE_OPTIONS | USER_OPTIONS
        values, _ = own.get(fits.option or "", ((), ""))
        yield from (Candidate(value, string=True) for value in values)
        return
    if row.type.kind in ("column", "columns"):
        yield from _columns_of_all(fits, known)
        return
    taken = _taken(fits, known)
    meanings = MEANINGS.get(row.name, {})
    for value in row.values:
        if taken is None or value in taken:
            default = "default" if value == row.shown_default else ""
            said = ", ".join(word for word in (meanings.get(value, ""), default) if word)
            yield Candidate(value, said, string=True)
    example = _EXAMPLE.search(row.example)
    if not row.values and example:
        text = example[1].replace("''", "'") if example[1] is not None else example[2].strip()
        yield Candidate(text, "for example", string=True)


def _columns_of_all(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    feed = _feed(fits, known)
    tables = fits.tables or (feed.tables if feed is not None else ())
    types: dict[str, str] = {}
    for table in tables:
        for name, type_name in known.columns(table, fits.source):
            types.setdefault(name, type_name)
    yield from (Candidate(name, type_name, string=True) for name, type_name in types.items())


def _abilities(fits: Suggestions, known: NameCache) -> SinkAbilities | None:
    """What the sink of the statement can do; None where it is not known."""
    from changefeed.api import sink_capabilities

    scheme = sink_scheme(fits, known)
    if scheme is None:
        return None
    try:
        return sink_capabilities(scheme)
    except ChangefeedError:
        return None  # an unknown scheme: the statement itself will say so


def _taken(fits: Suggestions, known: NameCache) -> frozenset[str] | None:
    """The values of the option that the statement's sink takes; None if it takes all."""
    able = _abilities(fits, known)
    if able is None or fits.option not in ("format", "envelope", "compression"):
        return None
    values = {
        "format": able.formats,
        "envelope": able.envelopes,
        "compression": able.compressions,
    }[fits.option]
    return frozenset(values) or None


# ------------------------------------------------------------------------ URIs


def _sink_uris(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    if "?" in fits.prefix:
        yield from _parameters(fits.prefix)
        return
    scheme, slashes, rest = fits.prefix.partition("://")
    if slashes and scheme in ("file", "duckdb") and rest.startswith("/"):
        yield from _paths(f"{scheme}://", rest)
        return
    from changefeed.api import sink_schemes

    for sink in sink_schemes():
        yield Candidate(f"{sink.scheme}://", sink.summary, string=True, literal=True)
    for name, kind in known.schemes().items():
        yield Candidate(f"external://{name}", f"{kind} connection", string=True)


def _connection_uris(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    if "://" in fits.prefix and "?" in fits.prefix:
        yield from _parameters(fits.prefix, connection=True)
        return
    if ":///" in fits.prefix:
        yield from _sink_uris(fits, known)
        return
    from changefeed.api import sink_schemes, source_schemes

    sources = source_schemes()
    for scheme in sources:
        example = f"{scheme}://user:password@host:5432/database"
        yield Candidate(f"{scheme}://", f"a source: {example}", string=True, literal=True)
    for sink in sink_schemes():
        if sink.scheme not in sources:
            yield Candidate(
                f"{sink.scheme}://", f"a sink: {sink.summary}", string=True, literal=True
            )


def _parameters(uri: str, *, connection: bool = False) -> Iterator[Candidate]:
    """The parameters that the URI does not have yet (``fs.*`` are only begun), or the values of the
    last one. A connection may be a source and a sink."""
    from changefeed.api import sink_parameters, source_parameters

    scheme = uri.partition(":")[0].lower()
    found: dict[str, Parameter] = {}
    for listed in (source_parameters, sink_parameters) if connection else (sink_parameters,):
        try:
            found = {one.name: one for one in listed(scheme)} | found
        except (ChangefeedError, ImportError):
            continue  # an unknown scheme, or no client: the statement itself will say so
    declared = found.values()
    head, _, query = uri.partition("?")
    *given, begun = query.split("&")
    name, equals, _ = begun.partition("=")
    if equals:
        values = next((one.values for one in declared if one.name == name), ())
        stem = uri[: len(uri) - len(begun)]
        yield from (
            Candidate(f"{stem}{name}={v}", "value", string=True, literal=True) for v in values
        )
        return
    have = {part.partition("=")[0] for part in given}
    stem = "&".join([f"{head}?" + "&".join(given), ""]) if given else f"{head}?"
    for one in declared:
        if one.name not in have:
            text = one.name.removesuffix("*") if one.begins else f"{one.name}="
            yield Candidate(stem + text, one.summary, string=True, literal=True)


def entries(folder: Path) -> list[tuple[Path, bool]]:
    """What is in a folder, sorted, and whether each is a folder that a user may want: hidden ones
    count as files. Empty where the folder cannot be read."""
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    return [(path, path.is_dir() and not path.name.startswith(".")) for path in found]


def _paths(lead: str, typed: str) -> Iterator[Candidate]:
    for path, is_folder in entries(Path(typed[: typed.rfind("/") + 1])):
        if is_folder:
            yield Candidate(f"{lead}{path}/", "folder", string=True, literal=True)
        elif lead.startswith("duckdb") and path.is_file():
            yield Candidate(f"{lead}{path}", "file", string=True, literal=True)


# ------------------------------------------------------------------------ listings


def _result_columns(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    from changefeed.api import LISTING_COLUMNS

    yield from (Candidate(name) for name in LISTING_COLUMNS.get(fits.listing, ()))


def _values(fits: Suggestions, known: NameCache) -> Iterator[Candidate]:
    from changefeed.api import STATUSES

    column, names = fits.column, list[str]()
    if column == "status":
        names = list(STATUSES)
    elif column == "name":
        names = [feed.name for feed in known.feeds()]
    elif column == "source":
        names = known.connections()
    elif column == "format":
        names = list(OPTIONS["format"].values)
    elif column == "lag":
        names = ["1m"]
    yield from (Candidate(name, string=True) for name in names)


_FILLERS: dict[str, Callable[[Suggestions, NameCache], Iterator[Candidate]]] = {
    "connection": _connections,
    "database": _connections,
    "feed": _feeds,
    "function": _functions,
    "job_id": _job_ids,
    "recurrence": _recurrences,
    "schedule": _schedules,
    "schedule_option": _schedule_options,
    "table": _tables,
    "schema": _schemas,
    "column": _columns,
    "partition": _partitions,
    "option": _options,
    "connection_option": _connection_options,
    "user_option": _user_options,
    "user": _users,
    "role": _roles,
    "cdc_option": _cdc_options,
    "dataset_option": _dataset_options,
    "option_value": _option_values,
    "sink_uri": _sink_uris,
    "connection_uri": _connection_uris,
    "result_column": _result_columns,
    "value": _values,
}
