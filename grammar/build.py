"""Lark tree -> syntax nodes.

A rule makes the node of its name, with the rule's parts as its fields; what a rule needs beyond
that is in a method of its name. Absent optional parts arrive as None, keywords not at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast
from typing import Literal as Literals

from lark import Token, Transformer, Tree, v_args
from lark.tree import Meta

from grammar import nodes
from grammar.nodes import FeedRef, Literal, Name, Option, QualifiedName, Span, Statement
from grammar.select import read_select

_GLOB = re.compile(r"([*?\[])")
_PATTERN_PART = re.compile(r'"((?:[^"]|"")+)"|([^"]+)')


def build(tree: Tree[Token]) -> Statement:
    """The node of a parsed statement."""
    return cast(Statement, _Builder(visit_tokens=False).transform(tree))


def identifier(text: str) -> str:
    """The name an identifier stands for: as it is when quoted, else in lower case."""
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


def string(text: str) -> str:
    """What stands between the quotes, doubled quotes undone."""
    return text[1:-1].replace("''", "'")


def pattern(text: str) -> str:
    """A table pattern as one glob; what was quoted stands for itself."""

    def part(match: re.Match[str]) -> str:
        quoted, bare = match.groups()
        if quoted is None:
            return str(bare).lower()
        return _GLOB.sub(r"[\1]", quoted.replace('""', '"'))

    return _PATTERN_PART.sub(part, text)


def _span(meta: Meta) -> Span:
    return Span(meta.start_pos, meta.end_pos)


def _at(token: Token) -> Span:
    start = token.start_pos or 0
    return Span(start, start + len(token))


def _literal(token: Token, kind: str) -> Literal:
    text = string(token) if kind == "string" else str(token)
    return Literal(text, kind, span=_at(token))


_LITERAL_KINDS = {"OPTION_STRING": "string", "OPTION_NUMBER": "number"}

#: IF NOT EXISTS, or OR REPLACE.
Existing = Literals[True, "replace"]

#: What a right is on: its kind and names.
_Right = tuple[nodes.GrantKind, tuple[QualifiedName, ...]]

#: The nodes by the names of their rules: ``show_jobs`` makes a ShowJobs.
_NODES: dict[str, type[nodes.SyntaxNode]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): node
    for name, node in vars(nodes).items()
    if isinstance(node, type) and issubclass(node, nodes.SyntaxNode)
}


@v_args(meta=True, inline=True)
class _Builder(Transformer[Token, Any]):
    def __default__(self, rule: str, parts: Sequence[Any], meta: Meta) -> Any:
        """The node of a rule without a method; where there is no such node, the parts."""
        node = _NODES.get(rule)
        if node is None:
            return tuple(parts)
        given: dict[str, Any] = {"span": _span(meta)} if hasattr(node, "span") else {}
        for field, part in zip(fields(node), parts, strict=False):  # type: ignore[arg-type]
            if isinstance(part, Token):
                given[f"{field.name}_span"] = _at(part)
                part = identifier(part)
            if part is not None:
                given[field.name] = part
        return node(**given)

    # ------------------------------------------------------------ connections

    def create_connection(
        self,
        meta: Meta,
        exists: bool | None,
        name: Name,
        uri: Token,
        options: tuple[Option, ...] | None,
    ) -> Statement:
        return nodes.CreateConnection(
            name.text,
            _literal(uri, "string"),
            bool(exists),
            options or (),
            span=_span(meta),
            name_span=name.span,
        )

    def alter_connection(
        self,
        meta: Meta,
        exists: bool | None,
        name: Name,
        uri: Token,
        options: tuple[Option, ...] | None,
    ) -> Statement:
        return nodes.AlterConnection(
            name.text,
            _literal(uri, "string"),
            options or (),
            bool(exists),
            span=_span(meta),
            name_span=name.span,
        )

    def drop_connection(self, meta: Meta, exists: bool | None, name: Name) -> Statement:
        return nodes.DropConnection(name.text, bool(exists), span=_span(meta), name_span=name.span)

    def connection_name(self, _meta: Meta, token: Token) -> Name:
        """CockroachDB writes the names of connections as strings."""
        text = string(token) if token.startswith("'") else identifier(token)
        return Name(text, span=_at(token))

    new_connection = new_schedule = connection_name

    def check_connection(self, meta: Meta, token: Token) -> Statement:
        if token.startswith("'") and ":" in token:
            return nodes.CheckConnection(uri=_literal(token, "string"), span=_span(meta))
        name = self.connection_name(meta, token).text
        return nodes.CheckConnection(name, span=_span(meta), name_span=_at(token))

    def show_connections(self, meta: Meta, name: Name | None = None) -> Statement:
        if name is None:
            return nodes.ShowConnections(span=_span(meta))
        return nodes.ShowConnections(name.text, span=_span(meta), name_span=name.span)

    def show_create_connection(self, meta: Meta, name: Name) -> Statement:
        return nodes.ShowCreateConnection(name.text, span=_span(meta), name_span=name.span)

    # ------------------------------------------------------------ making feeds

    def create_changefeed(
        self, meta: Meta, exists: Existing | None, name: Token | None, *rest: Any
    ) -> Statement:
        return _changefeed(meta, exists, name, *rest)

    def or_replace(self, _meta: Meta) -> Existing:
        return "replace"

    def create_query(
        self,
        meta: Meta,
        exists: Existing | None,
        name: Token | None,
        sink: Literal | None,
        options: tuple[Option, ...] | None,
        select: Token,
    ) -> Statement:
        return _changefeed(meta, exists, name, (_selected(select),), None, sink, options)

    def create_dataset(
        self,
        meta: Meta,
        exists: Existing | None,
        name: Token | None,
        location: Token,
        keys: tuple[Name, ...],
        ignored: tuple[Name, ...] | None,
        sink: Literal | None,
        options: tuple[Option, ...] | None,
    ) -> Statement:
        return nodes.CreateDataset(
            _literal(location, "string"),
            keys,
            ignored or (),
            None if name is None else identifier(name),
            sink,
            options or (),
            exists is True,
            exists == "replace",
            span=_span(meta),
            name_span=None if name is None else _at(name),
        )

    def dataset_key(self, _meta: Meta, *names: Token) -> tuple[Name, ...]:
        return tuple(Name(identifier(name), span=_at(name)) for name in names)

    dataset_except = users = dataset_key

    def create_function(
        self, meta: Meta, exists: bool | None, name: Token, *rest: Any
    ) -> Statement:
        *arguments, returns, reference, path = rest
        return nodes.CreateFunction(
            identifier(name),
            tuple(arguments),
            returns,
            _literal(reference, "string"),
            None if path is None else _literal(path, "string"),
            bool(exists),
            span=_span(meta),
            name_span=_at(name),
        )

    def function_argument(self, _meta: Meta, name: Token, kind: str) -> tuple[Name, str]:
        return Name(identifier(name), span=_at(name)), kind

    def function_type(self, _meta: Meta, name: Token, *sizes: Token | None) -> str:
        given = ",".join(size for size in sizes if size is not None)
        return name.lower() + (f"({given})" if given else "")

    def drop_user(self, meta: Meta, exists: bool | None, name: Token) -> Statement:
        return nodes.DropUser(identifier(name), bool(exists), span=_span(meta), name_span=_at(name))

    def grant(self, meta: Meta, right: _Right, users: tuple[Name, ...]) -> Statement:
        return nodes.Grant(*right, users, span=_span(meta))

    def revoke(self, meta: Meta, right: _Right, users: tuple[Name, ...]) -> Statement:
        return nodes.Revoke(*right, users, span=_span(meta))

    def on_role(self, _meta: Meta, name: Token) -> _Right:
        role = QualifiedName((identifier(name),), span=_at(name))
        return nodes.GrantKind.ROLE, (role,)

    def on_tables(self, _meta: Meta, *names: QualifiedName) -> _Right:
        return nodes.GrantKind.TABLE, names

    def on_schemas(self, _meta: Meta, *names: QualifiedName) -> _Right:
        return nodes.GrantKind.SCHEMA, names

    def on_connections(self, _meta: Meta, *names: Name) -> _Right:
        parts = (QualifiedName((name.text,), span=name.span) for name in names)
        return nodes.GrantKind.CONNECTION, tuple(parts)

    def drop_function(self, meta: Meta, exists: bool | None, name: Token) -> Statement:
        return nodes.DropFunction(
            identifier(name), bool(exists), span=_span(meta), name_span=_at(name)
        )

    def explain_analyze(
        self,
        meta: Meta,
        duration: Literal | None,
        statement: nodes.CreateChangefeed | nodes.CreateDataset | nodes.CreateCdc,
    ) -> Statement:
        return nodes.ExplainAnalyze(statement, duration, span=_span(meta))

    def analyze_duration(self, _meta: Meta, duration: Literal) -> Literal:
        return duration

    def experimental_changefeed(
        self,
        meta: Meta,
        targets: tuple[nodes.FeedTarget, ...],
        source: Name | None,
        options: tuple[Option, ...] | None,
    ) -> Statement:
        return _changefeed(meta, None, None, targets, source, None, options)

    def if_exists(self, _meta: Meta) -> bool:
        return True

    user_if_exists = function_if_not_exists = function_if_exists = when_complete = if_exists
    schedule_if_exists = schedule_if_not_exists = if_exists
    if_not_exists = connection_if_exists = connection_if_not_exists = if_exists

    def source(self, meta: Meta, name: Token) -> Name:
        return Name(identifier(name), span=_at(name))

    def into(self, _meta: Meta, uri: Token) -> Literal:
        return _literal(uri, "string")

    def table_target(
        self,
        meta: Meta,
        name: QualifiedName,
        columns: tuple[str, ...] | None,
        bounds: tuple[tuple[Literal, ...], tuple[Literal, ...]] | None,
        partition: str | None,
        topic: str | None,
    ) -> nodes.TableTarget:
        lower, upper = bounds or ((), ())
        return nodes.TableTarget(
            name, columns or (), lower, upper, partition, topic, span=_span(meta)
        )

    def schema_target(
        self, meta: Meta, name: QualifiedName, filtered: Any | None
    ) -> nodes.SchemaTarget:
        how, patterns = filtered or (None, ())
        return nodes.SchemaTarget(name, how, patterns, span=_span(meta))

    def database_target(
        self, meta: Meta, name: QualifiedName, filtered: Any | None
    ) -> nodes.DatabaseTarget:
        how, patterns = filtered or (None, ())
        return nodes.DatabaseTarget(name, how, patterns, span=_span(meta))

    def messages_target(self, meta: Meta, *parts: Any) -> nodes.MessagesTarget:
        *prefixes, topic = parts
        return nodes.MessagesTarget(tuple(map(string, prefixes)), topic, span=_span(meta))

    def table_name(self, meta: Meta, *parts: Token) -> QualifiedName:
        return QualifiedName(tuple(map(identifier, parts)), span=_span(meta))

    schema_name = database_name = table_name

    def columns(self, _meta: Meta, *names: Token) -> tuple[str, ...]:
        return tuple(map(identifier, names))

    def partition(self, _meta: Meta, name: Token) -> str:
        return identifier(name)

    def topic(self, _meta: Meta, name: Token) -> str:
        return string(name) if name.type == "TOPIC_STRING" else identifier(name)

    messages_topic = topic

    def table_filter(
        self, _meta: Meta, how: Token, *patterns: str
    ) -> tuple[nodes.Filter, tuple[str, ...]]:
        return nodes.Filter(how.lower()), patterns

    def pattern(self, _meta: Meta, text: Token) -> str:
        return string(text) if text.type == "PATTERN_STRING" else pattern(text)

    # ------------------------------------------------------------ options and literals

    def option(self, _meta: Meta, name: Token, value: Literal | None) -> Option:
        return Option(identifier(name), value, span=_at(name))

    cdc_option = dataset_option = connection_option = user_option = schedule_option = option

    def option_value(self, _meta: Meta, token: Token) -> Literal:
        return _literal(token, _LITERAL_KINDS.get(token.type, "word"))

    def string(self, _meta: Meta, token: Token) -> Literal:
        return _literal(token, "string")

    def number(self, _meta: Meta, token: Token) -> Literal:
        return _literal(token, "number")

    def boolean(self, _meta: Meta, token: Token) -> Literal:
        return Literal(token.upper(), "word", span=_at(token))

    # ------------------------------------------------------------ changing and stopping feeds

    def feed(self, _meta: Meta, token: Token) -> FeedRef:
        if token.type == "JOB_ID":
            return FeedRef(job_id=int(token), span=_at(token))
        return FeedRef(name=identifier(token), span=_at(token))

    job = feed

    def alter_changefeed(
        self,
        meta: Meta,
        exists: bool | None,
        feed: FeedRef,
        *actions: nodes.AlterAction | tuple[nodes.AlterAction, ...],
    ) -> Statement:
        flat = (each for a in actions for each in (a if isinstance(a, tuple) else (a,)))
        return nodes.AlterChangefeed(feed, tuple(flat), bool(exists), span=_span(meta))

    def rename_changefeed(
        self, meta: Meta, exists: bool | None, feed: FeedRef, name: Token
    ) -> Statement:
        return nodes.RenameChangefeed(
            feed, identifier(name), bool(exists), span=_span(meta), name_span=_at(name)
        )

    def change_owner(
        self, meta: Meta, exists: bool | None, feed: FeedRef, user: Token
    ) -> Statement:
        return nodes.ChangeOwner(
            feed, identifier(user), bool(exists), span=_span(meta), name_span=_at(user)
        )

    def skip_transaction(
        self, meta: Meta, exists: bool | None, feed: FeedRef, transaction: nodes.Literal
    ) -> Statement:
        return nodes.SkipTransaction(feed, transaction, bool(exists), span=_span(meta))

    def pause_changefeed(self, meta: Meta, *parts: Any) -> Statement:
        *exists, feeds = parts
        return nodes.PauseChangefeed(feeds, any(exists), span=_span(meta))

    def resume_changefeed(self, meta: Meta, *parts: Any) -> Statement:
        *exists, feeds = parts
        return nodes.ResumeChangefeed(feeds, any(exists), span=_span(meta))

    def pause_tables(
        self, meta: Meta, exists: bool | None, feed: FeedRef, tables: tuple[QualifiedName, ...]
    ) -> Statement:
        return nodes.PauseTables(feed, tables, bool(exists), span=_span(meta))

    def resume_tables(
        self, meta: Meta, exists: bool | None, feed: FeedRef, tables: tuple[QualifiedName, ...]
    ) -> Statement:
        return nodes.ResumeTables(feed, tables, bool(exists), span=_span(meta))

    def alter_set(self, _meta: Meta, *options: Option) -> tuple[nodes.AlterAction, ...]:
        """``SET sink = 'uri'`` is CockroachDB's spelling of ``INTO 'uri'``."""
        sinks = [
            nodes.AlterInto(option.value)
            for option in options
            if option.name == "sink" and option.value is not None
        ]
        others = tuple(option for option in options if option.name != "sink" or not option.value)
        return (*((nodes.AlterSet(others),) if others else ()), *sinks)

    def alter_unset(self, _meta: Meta, *names: Name) -> nodes.AlterAction:
        return nodes.AlterUnset(names)

    def alter_filter(
        self, meta: Meta, filtered: tuple[nodes.Filter, tuple[str, ...]]
    ) -> nodes.AlterAction:
        return nodes.AlterFilter(*filtered, span=_span(meta))

    def alter_unfiltered(self, meta: Meta, how: Token) -> nodes.AlterAction:
        return nodes.AlterFilter(nodes.Filter(how.lower()), span=_span(meta))

    def alter_into(self, _meta: Meta, uri: Token) -> nodes.AlterAction:
        return nodes.AlterInto(_literal(uri, "string"))

    def option_name(self, _meta: Meta, token: Token) -> Name:
        return Name(identifier(token), span=_at(token))

    def drop_changefeed(
        self, meta: Meta, exists: bool | None, feeds: tuple[FeedRef, ...]
    ) -> Statement:
        return nodes.DropChangefeed(feeds, bool(exists), span=_span(meta))

    def drop_all_changefeeds(self, meta: Meta) -> Statement:
        return nodes.DropChangefeed((), span=_span(meta))

    def cancel_jobs(self, meta: Meta, jobs: tuple[FeedRef, ...]) -> Statement:
        return nodes.DropChangefeed(jobs, span=_span(meta))

    # ------------------------------------------------------------ schedules

    def create_schedule(
        self,
        meta: Meta,
        exists: Existing | None,
        name: Name | None,
        targets: tuple[nodes.FeedTarget, ...],
        source: Name | None,
        sink: Literal,
        options: tuple[Option, ...] | None,
        recurring: tuple[Literal, tuple[Option, ...]],
    ) -> Statement:
        feed = _changefeed(meta, None, None, targets, source, sink, options)
        return nodes.CreateSchedule(
            feed,
            recurring[0],
            None if name is None else name.text,
            recurring[1],
            exists is True,
            exists == "replace",
            span=_span(meta),
            name_span=None if name is None else name.span,
        )

    def create_scheduled_query(
        self,
        meta: Meta,
        exists: Existing | None,
        name: Name | None,
        sink: Literal,
        options: tuple[Option, ...] | None,
        select: Token,
        recurring: tuple[Literal, tuple[Option, ...]],
    ) -> Statement:
        targets = (_selected(select),)
        return self.create_schedule(meta, exists, name, targets, None, sink, options, recurring)

    def recurring(
        self, _meta: Meta, cron: Token, options: tuple[Option, ...] | None
    ) -> tuple[Literal, tuple[Option, ...]]:
        return _literal(cron, "string"), options or ()

    def schedule(self, meta: Meta, token: Token) -> FeedRef:
        if token.type == "SCHEDULE_ID":
            return FeedRef(job_id=int(token), span=_at(token))
        return FeedRef(self.connection_name(meta, token).text, span=_at(token))

    def show_schedules(self, meta: Meta, which: Token | None) -> Statement:
        return nodes.ShowSchedules(which and which.lower(), span=_span(meta))

    # ------------------------------------------------------------ comparing

    def verify_changefeed(
        self, meta: Meta, feed: FeedRef, table: QualifiedName | None, repair: Token | None
    ) -> Statement:
        return nodes.Verify(feed, table, repair is not None, span=_span(meta))

    # ------------------------------------------------------------ looking at feeds

    def listing(
        self,
        meta: Meta,
        shown: nodes.Inquiry,
        where: nodes.Test | None,
        order_by: tuple[nodes.Ordering, ...] | None,
        limit: int | None,
    ) -> Statement:
        if where is None and order_by is None and limit is None:
            return shown
        return nodes.ShowWhere(shown, where, order_by or (), limit, span=_span(meta))

    def all_of(self, _meta: Meta, *tests: nodes.Test) -> nodes.Test:
        return nodes.Conjunction(tests)

    def any_of(self, _meta: Meta, *tests: nodes.Test) -> nodes.Test:
        return nodes.Disjunction(tests)

    def negated(self, _meta: Meta, test: nodes.Test) -> nodes.Test:
        return nodes.Negation(test)

    def comparison(
        self, _meta: Meta, column: Token, operator: Token, value: Literal
    ) -> nodes.Condition:
        written = "<>" if operator == "!=" else str(operator)
        return nodes.Condition(identifier(column), written, (value,), span=_at(column))

    def likeness(
        self, _meta: Meta, column: Token, negated: bool | None, value: Literal
    ) -> nodes.Condition:
        return nodes.Condition(
            identifier(column), "LIKE", (value,), bool(negated), span=_at(column)
        )

    def membership(
        self, _meta: Meta, column: Token, negated: bool | None, *values: Literal
    ) -> nodes.Condition:
        return nodes.Condition(identifier(column), "IN", values, bool(negated), span=_at(column))

    def null_test(self, _meta: Meta, column: Token, negated: bool | None) -> nodes.Condition:
        return nodes.Condition(identifier(column), "NULL", negated=bool(negated), span=_at(column))

    def negation(self, _meta: Meta) -> bool:
        return True

    def ordering(self, _meta: Meta, column: Token, direction: Token | None) -> nodes.Ordering:
        descending = direction is not None and direction.type == "DESC"
        return nodes.Ordering(identifier(column), descending, span=_at(column))

    def limit(self, _meta: Meta, count: Token) -> int:
        return int(count)

    def dead_letters(self, _meta: Meta) -> str:
        return "dead_letters"

    def letter_numbers(self, _meta: Meta, *numbers: Token) -> tuple[int, ...]:
        return tuple(map(int, numbers))

    def retry_dead_letters(
        self, meta: Meta, feed: FeedRef, letters: tuple[int, ...] | None
    ) -> Statement:
        return nodes.RetryDeadLetters(feed, letters or (), span=_span(meta))

    def discard_dead_letters(
        self, meta: Meta, feed: FeedRef, letters: tuple[int, ...] | None
    ) -> Statement:
        return nodes.DiscardDeadLetters(feed, letters or (), span=_span(meta))

    def show_changefeed(self, meta: Meta, feed: FeedRef, aspect: str | None) -> Statement:
        return nodes.ShowChangefeed(feed, aspect and aspect.lower(), span=_span(meta))

    def show_job(self, meta: Meta, complete: bool | None, job: FeedRef) -> Statement:
        return nodes.ShowJob(job, bool(complete), span=_span(meta))

    def all_connections(self, _meta: Meta) -> str:
        return "connections"

    def all_changefeeds(self, _meta: Meta) -> str:
        return "changefeeds"

    def all_schedules(self, _meta: Meta) -> str:
        return "schedules"

    # ------------------------------------------------------------ YugabyteDB's dialect

    def cdc_streams(self, meta: Meta) -> str:
        return "streams"

    def cdc_subscribers(self, meta: Meta) -> str:
        return "subscribers"

    def create_cdc(
        self,
        meta: Meta,
        exists: bool | None,
        table: QualifiedName,
        kind: Token,
        options: tuple[Option, ...] | None,
    ) -> Statement:
        return nodes.CreateCdc(table, kind.lower(), options or (), bool(exists), span=_span(meta))

    def drop_cdc(self, meta: Meta, exists: bool | None, table: QualifiedName) -> Statement:
        return nodes.DropCdc(table, bool(exists), span=_span(meta))


def _selected(select: Token) -> nodes.TableTarget:
    table, query = read_select(str(select), select.start_pos or 0)
    return nodes.TableTarget(table, query=query, span=_at(select))


def _changefeed(
    meta: Meta,
    exists: Existing | None,
    name: Token | None,
    targets: tuple[nodes.FeedTarget, ...],
    source: Name | None,
    sink: Literal | None,
    options: tuple[Option, ...] | None,
) -> nodes.CreateChangefeed:
    return nodes.CreateChangefeed(
        targets,
        name=None if name is None else identifier(name),
        source=None if source is None else source.text,
        sink=sink,
        options=options or (),
        if_not_exists=exists is True,
        or_replace=exists == "replace",
        span=_span(meta),
        name_span=None if name is None else _at(name),
        source_span=None if source is None else source.span,
    )
