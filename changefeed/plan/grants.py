"""What a feed may be when rights of a user bound it: checked before anything is connected to.

A user who is no admin names connections that were granted, never a URI: what a node can reach is
more than the user can. The rows of the state are checked again when a feed is stored or resumed
(:mod:`changefeed.catalog.grants`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from changefeed.catalog import OwnerRights, external_name
from changefeed.core.errors import ChangefeedError
from changefeed.core.references import has_references
from changefeed.options import CONFLUENT_SCHEMA_REGISTRY, ON_MAX_DISK, to_span
from changefeed.plan.sink_resolution import ResolvedSink
from changefeed.plan.targets import ResolvedTarget
from grammar import nodes
from grammar.select import lexemes_of

#: Options that name an address, or hold up the feeds of others.
_FOR_ADMINS = (CONFLUENT_SCHEMA_REGISTRY.name, ON_MAX_DISK.name)
#: Functions of Spark SQL that read a file which an argument names.
_READ_FILES = frozenset({"from_protobuf", "to_protobuf", "from_xml", "schema_of_xml"})


@dataclass(frozen=True, slots=True)
class FeedRights:
    """The rights that bound a feed.

    Attributes:
        owner: what was granted to the user whose feed it is.
        own: the statement is that user's; an admin, who may alter the feed too, writes URIs.
        functions: the Python functions of queries, which no right is on.
    """

    owner: OwnerRights
    own: bool
    functions: Collection[str] = ()

    def require_source(self, name: str, span: nodes.Span | None) -> None:
        """Raise if a source was not granted.

        Raises:
            ChangefeedError: CF1403.
        """
        _raise(self.owner.connection_error(name), span)

    def require_sink(self, sink: nodes.Literal) -> None:
        """Raise if a sink is not a connection that was granted, as it is.

        Raises:
            ChangefeedError: CF1403.
        """
        name = external_name(sink.text)
        if self.own and (name is None or "?" in sink.text):
            what = "a sink's URI" if name is None else "a parameter of a connection"
            error = self.owner.role_error(what)
            error.hint = (
                "name a connection that was granted: INTO 'external://name'. An admin can make one "
                "and give the right: GRANT USAGE ON EXTERNAL CONNECTION name TO "
                f"{self.owner.shown}."
            )
            _raise(error, sink.span)
        if name is not None:
            _raise(self.owner.connection_error(name), sink.span)

    def option_errors(
        self, options: Sequence[nodes.Option], sink: ResolvedSink | None
    ) -> Iterator[ChangefeedError]:
        """CF1403 of options that reach further than the connections."""
        if not self.own:
            return
        brought = {row.name for row in sink.capabilities.options} if sink is not None else set()
        for option in options:
            what = ""
            if option.value is not None and has_references(option.value.text):
                what = f"a reference to a secret in {option.name}"
            elif option.name in _FOR_ADMINS or option.name in brought:
                what = f"the option {option.name}"
            if what:
                yield _placed(self.owner.role_error(what), option.span)

    def permitted(
        self, targets: Sequence[nodes.FeedTarget], found: Sequence[ResolvedTarget], source: str
    ) -> tuple[list[ResolvedTarget], list[ChangefeedError]]:
        """The tables that were granted, and CF1403 for each other target."""
        problems: list[ChangefeedError] = []
        for target in targets:
            problems += self._target_errors(target, source)
        kept = []
        for place in found:
            if isinstance(place.target, nodes.TableTarget):
                error = self.owner.table_error(place.schema.table)
            else:
                error = problems[0] if problems else None
            if error is None:
                kept.append(place)
            elif isinstance(place.target, nodes.TableTarget):
                problems.append(_placed(error, place.target.name.span or place.target.span))
        return kept, problems

    def _target_errors(self, target: nodes.FeedTarget, source: str) -> Iterator[ChangefeedError]:
        match target:
            case nodes.SchemaTarget():
                error = self.owner.schema_error(source, target.name.parts[-1])
                if error is not None:
                    yield _placed(error, target.span)
            case nodes.DatabaseTarget() | nodes.MessagesTarget():
                kind = "DATABASE" if isinstance(target, nodes.DatabaseTarget) else "MESSAGES"
                yield _placed(self.owner.role_error(f"a {kind} target"), target.span)
            case nodes.TableTarget(query=nodes.Query() as query):
                yield from self._query_errors(query)

    def _query_errors(self, query: nodes.Query) -> Iterator[ChangefeedError]:
        """A look-up reads any path, and a function is any code."""
        for join in query.joins:
            span = join.spans[0] if join.spans else None
            yield _placed(self.owner.role_error("a look-up table"), span)
        refused = _READ_FILES.union(self.functions)
        for text in (query.items, query.where, query.group):
            tokens = lexemes_of(text)
            for place, after in itertools.pairwise(tokens):
                name = place.text.strip('`"').lower()
                if after.text == "(" and name in refused:
                    yield self.owner.role_error(f"the function {name} in a query")


def _placed(error: ChangefeedError, span: nodes.Span | None) -> ChangefeedError:
    error.span = error.span or to_span(span)
    return error


def _raise(error: ChangefeedError | None, span: nodes.Span | None) -> None:
    if error is not None:
        raise _placed(error, span)
