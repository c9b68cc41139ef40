"""Finds the source that a statement reads, by the names in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from changefeed.catalog import Catalog, Connection
from changefeed.core.errors import ChangefeedError, Code
from changefeed.options import to_span
from changefeed.sources.registry import schemes
from grammar import nodes
from grammar.spelling import did_you_mean


def unknown_name(
    what: str, name: str | int, known: Iterable[str], otherwise: str, span: nodes.Span | None
) -> ChangefeedError:
    """CF1101 with the nearest name that is known.

    Args:
        what: what the name is of, as ``changefeed``.
        otherwise: the hint where no known name is near.
    """
    near = did_you_mean(str(name), list(known))
    return ChangefeedError(
        Code.NAME_UNKNOWN,
        f'{what} "{name}" does not exist',
        hint=f'did you mean "{near}"?' if near else otherwise,
        span=to_span(span),
    )


def source_connections(catalog: Catalog) -> list[Connection]:
    """The connections that can be a source, by name."""
    known = schemes()
    return [c for c in catalog.connections() if scheme_of(c.uri) in known]


def scheme_of(uri: str) -> str:
    """The scheme of a URI in lower case; empty when it has none."""
    scheme, colon, _ = uri.partition(":")
    return scheme.lower() if colon else ""


def database_of(uri: str) -> str:
    """The database that a source's URI names; empty if it names none."""
    try:
        return urlsplit(uri).path.strip("/")
    except ValueError:
        return ""  # the source itself reports what is wrong with the URI


def find_source(catalog: Catalog, name: str, span: nodes.Span | None) -> Connection:
    """The source connection called ``name``.

    Raises:
        ChangefeedError: CF1101 no such connection, CF1103 it is no source.
    """
    connections = catalog.connections()
    found = next((c for c in connections if c.name == name), None)
    if found is None:
        names = [c.name for c in connections]
        raise unknown_name("external connection", name, names, _make_one(connections), span)
    if scheme_of(found.uri) not in schemes():
        raise ChangefeedError(
            Code.NAME_NOT_ALLOWED,
            f'external connection "{name}" is a sink, not a source',
            hint=f"sources are: {', '.join(schemes())}.",
            span=to_span(span),
        )
    return found


def choose_source(
    catalog: Catalog,
    targets: Sequence[nodes.FeedTarget],
    explicit: str | None,
    explicit_span: nodes.Span | None,
    session: str | None,
    *,
    instead: str = "add FROM {source}",
) -> Connection:
    """The one source of a feed. ``instead``: how the statement names a source.

    In this order: FROM; the source part of a target's name; a DATABASE target; a first part that
    is a connection if no other is chosen; USE; the only source there is.

    Raises:
        ChangefeedError: CF1101 none can be chosen, CF1303 targets of two sources.
    """
    if explicit is not None:
        chosen = find_source(catalog, explicit, explicit_span)
        _refuse_others(targets, chosen.name)
        return chosen
    for target in targets:
        name = _source_part(target)
        if name is not None:
            chosen = find_source(catalog, name, target.name.span or target.span)
            _refuse_others(targets, chosen.name)
            return chosen
    known = source_connections(catalog)
    for target in targets:
        if isinstance(target, nodes.DatabaseTarget):
            return _of_database(known, target, session)
    fallback = session or (known[0].name if len(known) == 1 else None)
    by_name = {c.name: c for c in known}
    for target in targets:
        first = target.name.parts[0]
        qualified = len(target.name.parts) > 1
        if qualified and first in by_name and fallback in (None, first):
            return by_name[first]
    if fallback is not None:
        return find_source(catalog, fallback, None)
    raise _no_source(known, targets, instead)


def _source_part(target: nodes.FeedTarget) -> str | None:
    """The first part of the name if it can only be a source."""
    parts = target.name.parts
    full = {nodes.TableTarget: 3, nodes.SchemaTarget: 2}.get(type(target), 99)
    return parts[0] if len(parts) >= full else None


def _refuse_others(targets: Sequence[nodes.FeedTarget], source: str) -> None:
    for target in targets:
        name = _source_part(target)
        if name is not None and name != source:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"a changefeed reads one source: {source} and {name} are two",
                hint="make a changefeed for each.",
                span=to_span(target.name.span or target.span),
            )


def _of_database(
    known: Sequence[Connection], target: nodes.DatabaseTarget, session: str | None
) -> Connection:
    """``DATABASE d``: d is a connection, or the database that one leads to (USE breaks a tie)."""
    name = target.name.parts[-1]
    named = [c for c in known if c.name == name]
    leading = [c for c in known if database_of(c.uri) == name]
    choice = named or [c for c in leading if c.name == session] or leading
    if len(choice) == 1:
        return choice[0]
    span = target.name.span or target.span
    if choice:
        listed = ", ".join(c.name for c in choice)
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f'database "{name}" is reached by several connections: {listed}',
            hint=f"name one: DATABASE {choice[0].name}, or FROM {choice[0].name}.",
            span=to_span(span),
        )
    words = [*(c.name for c in known), *(database_of(c.uri) for c in known)]
    listed = "SHOW EXTERNAL CONNECTIONS lists them."
    raise unknown_name("database", name, filter(None, words), listed, span)


def _no_source(
    known: Sequence[Connection], targets: Sequence[nodes.FeedTarget], instead: str
) -> ChangefeedError:
    span = to_span(targets[0].name.span or targets[0].span) if targets else None
    if not known:
        return ChangefeedError(
            Code.NAME_UNKNOWN, "there is no source to read from", hint=_make_one(known), span=span
        )
    names = ", ".join(c.name for c in known)
    return ChangefeedError(
        Code.NAME_UNKNOWN,
        "no source is selected, and there are several",
        hint=f"{instead.format(source=known[0].name)}, or run USE {known[0].name} first; sources "
        f"are: {names}.",
        span=span,
    )


def _make_one(known: Sequence[Connection]) -> str:
    if known:
        return f"connections are: {', '.join(c.name for c in known)}."
    return "CREATE EXTERNAL CONNECTION shop AS 'postgresql://user:password@host/database'; first."
