"""Syntax nodes -> SQL: canonical, on one line, without the final ``;``.

What is printed parses to an equal node. Names are quoted only when they must be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace

from grammar import nodes
from grammar.nodes import FeedRef, FeedTarget, Literal, Option, QualifiedName, Statement

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")
_PLAIN_PATTERN = re.compile(r"[a-z_*?][a-z0-9_$*?]*(?:\.[a-z0-9_$*?]+)?\Z")

_PART = re.compile(r'"((?:[^"]|"")*)"|([^."\s]+)')

_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")

#: Words that a name could be mistaken for where names stand; as names they are quoted.
# fmt: off
RESERVED = frozenset({
    "add", "alter", "and", "as", "by", "create", "database", "dataset", "drop", "exclude",
    "exists", "for", "from", "if", "in", "include", "into", "is", "job", "jobs", "like", "limit",
    "not", "null", "options", "or", "order", "partition", "rename", "schema", "set", "show",
    "table", "tables", "timeout", "unset", "values", "where", "with",
})
# fmt: on


def to_sql(
    node: Statement | FeedTarget | Option,
    *,
    redact: Callable[[str], str] | None = None,
    redact_option: Callable[[str, str], str] | None = None,
) -> str:
    """The SQL of a statement, a target or an option.

    Args:
        node: what to print.
        redact: applied to every URI, to take secrets out.
        redact_option: applied to every option value, given the option's name and the value.
    """
    return _Printer(redact or _same, redact_option or _same_value).print(node)


def name(text: str) -> str:
    """An identifier, quoted where it could be read as something else."""
    if _PLAIN.match(text) and text not in RESERVED:
        return text
    return '"' + text.replace('"', '""') + '"'


def parts(text: str) -> tuple[str, ...]:
    """The parts of a dotted name: folded to lower case unless quoted, as PostgreSQL does."""
    return tuple(
        found[1].replace('""', '"') if found[1] is not None else found[2].lower()
        for found in _PART.finditer(text)
    )


def string(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"


def _same(text: str) -> str:
    return text


def _same_value(_option: str, value: str) -> str:
    return value


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _words(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)


def _qualified(qualified: QualifiedName) -> str:
    return ".".join(map(name, qualified.parts))


def _spark_name(text: str) -> str:
    """A part of the name of a table of Spark: paths in backticks, as Spark's users write them."""
    return text if _PLAIN.match(text) else "`" + text.replace("`", "``") + "`"


def _pattern(text: str) -> str:
    plain = _PLAIN_PATTERN.match(text) and text not in RESERVED
    return text if plain else string(text)


def _literal(literal: Literal) -> str:
    return string(literal.text) if literal.kind == "string" else literal.text


def _feed(feed: FeedRef) -> str:
    return str(feed.job_id) if feed.name is None else name(feed.name)


def _row(values: tuple[Literal, ...]) -> str:
    return f"({_list(map(_literal, values))})"


def _test(test: nodes.Test, inside: bool = False) -> str:
    match test:
        case nodes.Condition(operator="NULL"):
            return _words(name(test.column), "IS", "NOT" if test.negated else None, "NULL")
        case nodes.Condition():
            value = _row(test.values) if test.operator == "IN" else _literal(test.values[0])
            negated = "NOT" if test.negated else None
            return _words(name(test.column), negated, test.operator, value)
        case nodes.Negation():
            return f"NOT {_test(test.test, inside=True)}"
    operator = " AND " if isinstance(test, nodes.Conjunction) else " OR "
    written = operator.join(_test(each, inside=True) for each in test.tests)
    return f"({written})" if inside else written


def _ordering(ordering: nodes.Ordering) -> str:
    return _words(name(ordering.column), "DESC" if ordering.descending else None)


def _right(node: nodes.Grant | nodes.Revoke) -> str:
    names = _list(map(_qualified, node.names))
    right = {
        nodes.GrantKind.ROLE: names,
        nodes.GrantKind.TABLE: f"CHANGEFEED ON TABLE {names}",
        nodes.GrantKind.SCHEMA: f"CHANGEFEED ON SCHEMA {names}",
        nodes.GrantKind.CONNECTION: f"USAGE ON EXTERNAL CONNECTION {names}",
    }[node.kind]
    verb, word = ("GRANT", "TO") if isinstance(node, nodes.Grant) else ("REVOKE", "FROM")
    return _words(verb, right, word, _list(name(user.text) for user in node.users))


def _narrowed(node: nodes.SchemaTarget | nodes.DatabaseTarget) -> str | None:
    if node.filter is None:
        return None
    return f"{node.filter.upper()} TABLES {_list(map(_pattern, node.patterns))}"


class _Printer:
    def __init__(
        self, redact: Callable[[str], str], redact_option: Callable[[str, str], str]
    ) -> None:
        self.redact = redact
        self.redact_option = redact_option

    def print(self, node: Statement | FeedTarget | Option) -> str:
        match node:
            case nodes.CreateConnection():
                exists = "IF NOT EXISTS" if node.if_not_exists else None
                named = _words("CREATE EXTERNAL CONNECTION", exists, name(node.name))
                return _words(named, "AS", self.uri(node.uri), self.options(node.options))
            case nodes.AlterConnection():
                exists = "IF EXISTS" if node.if_exists else None
                named = _words("ALTER EXTERNAL CONNECTION", exists, name(node.name))
                return _words(named, "AS", self.uri(node.uri), self.options(node.options))
            case nodes.DropConnection():
                exists = "IF EXISTS" if node.if_exists else None
                return _words("DROP EXTERNAL CONNECTION", exists, name(node.name))
            case nodes.CheckConnection():
                checked = name(node.name or "") if node.uri is None else self.uri(node.uri)
                return f"CHECK EXTERNAL CONNECTION {checked}"
            case nodes.ShowConnections(name=None):
                return "SHOW EXTERNAL CONNECTIONS"
            case nodes.ShowConnections():
                return f"SHOW EXTERNAL CONNECTION {name(node.name or '')}"
            case nodes.ShowCreateConnection():
                return f"SHOW CREATE EXTERNAL CONNECTION {name(node.name)}"
            case nodes.ShowCreateAll():
                aspect = "EXTERNAL CONNECTIONS" if node.aspect == "connections" else node.aspect
                return _words("SHOW CREATE ALL", aspect and aspect.upper())
            case nodes.ShowJob():
                complete = "WHEN COMPLETE" if node.when_complete else None
                return _words("SHOW JOB", complete, _feed(node.job))
            case nodes.ShowWhere():
                return self.selection(node)
            case nodes.ShowTables():
                return _words("SHOW TABLES", self.source(node.source))
            case nodes.Validate():
                if isinstance(node.statement, nodes.FeedRef):
                    return f"VALIDATE CHANGEFEED {_feed(node.statement)}"
                return f"VALIDATE {self.print(node.statement)}"
            case nodes.ExplainAnalyze():
                given = node.duration
                lasts = None if given is None else f"(DURATION {_literal(given)})"
                return _words("EXPLAIN ANALYZE", lasts, self.print(node.statement))
            case nodes.Sync():
                return _words("SYNC CHANGEFEED", _feed(node.feed), _timeout(node.timeout))
            case nodes.SyncAll():
                return _words("SYNC ALL CHANGEFEEDS", _timeout(node.timeout))
            case nodes.Verify():
                table = None if node.table is None else f"TABLE {_qualified(node.table)}"
                repair = "REPAIR" if node.repair else None
                return _words("VERIFY CHANGEFEED", _feed(node.feed), table, repair)
            case nodes.Option():
                return self.option(node)
            case (
                nodes.TableTarget()
                | nodes.SchemaTarget()
                | nodes.DatabaseTarget()
                | nodes.MessagesTarget()
            ):
                return self.target(node)
            case _:
                return self.feed_statement(node)

    def feed_statement(self, node: Statement) -> str:
        match node:
            case nodes.CreateChangefeed():
                return self.create(node)
            case nodes.CreateFunction():
                arguments = _list(f"{argument.text} {kind}" for argument, kind in node.arguments)
                exists = "IF NOT EXISTS" if node.if_not_exists else None
                path = None if node.path is None else f"PATH {_literal(node.path)}"
                head = _words("CREATE FUNCTION", exists, node.name)
                made = f"({arguments}) RETURNS {node.returns} AS {_literal(node.reference)}"
                return _words(head, made, path)
            case nodes.DropFunction():
                return _words("DROP FUNCTION", "IF EXISTS" if node.if_exists else None, node.name)
            case nodes.CreateUser() | nodes.AlterUser():
                verb = "CREATE" if isinstance(node, nodes.CreateUser) else "ALTER"
                return _words(f"{verb} USER", name(node.name), self.options(node.options))
            case nodes.DropUser():
                return _words("DROP USER", "IF EXISTS" if node.if_exists else None, name(node.name))
            case nodes.Grant() | nodes.Revoke():
                return _right(node)
            case nodes.ShowGrants():
                return _words(
                    "SHOW GRANTS", None if node.name is None else f"FOR {name(node.name)}"
                )
            case nodes.CreateDataset():
                return self.dataset(node)
            case nodes.CreateSchedule():
                return self.schedule(node)
            case nodes.PauseSchedule() | nodes.ResumeSchedule() | nodes.DropSchedule():
                verb = _CAPITALS.sub(" ", type(node).__name__).upper()
                dropping = isinstance(node, nodes.DropSchedule) and node.if_exists
                exists = "IF EXISTS" if dropping else None
                return _words(verb, exists, _list(map(_feed, node.schedules)))
            case nodes.ShowSchedules():
                return _words("SHOW", node.which and node.which.upper(), "SCHEDULES")
            case nodes.CreateCdc():
                options = self.options(node.options)
                table = _qualified(node.table)
                exists = "IF NOT EXISTS" if node.if_not_exists else None
                head = _words("CREATE CDC", exists, "FOR")
                return _words(head, table, "INTO", node.kind.upper(), options)
            case nodes.DropCdc():
                exists = "IF EXISTS" if node.if_exists else None
                return _words("DROP CDC", exists, "FOR", _qualified(node.table))
            case nodes.AlterChangefeed():
                return _words(_altered(node), *map(self.action, node.actions))
            case nodes.RenameChangefeed():
                return _words(_altered(node), "RENAME TO", name(node.new_name))
            case nodes.ChangeOwner():
                return _words(_altered(node), "OWNER TO", name(node.user))
            case nodes.SkipTransaction():
                return _words(_altered(node), "SKIP TRANSACTION", _literal(node.transaction))
            case nodes.PauseChangefeed():
                return _which("PAUSE", node.feeds, node.if_exists)
            case nodes.ResumeChangefeed():
                return _which("RESUME", node.feeds, node.if_exists)
            case nodes.PauseTables():
                which = _which("PAUSE", (node.feed,), node.if_exists)
                return _words(which, "TABLE", _list(map(_qualified, node.tables)))
            case nodes.ResumeTables():
                which = _which("RESUME", (node.feed,), node.if_exists)
                return _words(which, "TABLE", _list(map(_qualified, node.tables)))
            case nodes.DropChangefeed():
                return _which("DROP", node.feeds, node.if_exists)
            case nodes.ShowChangefeed():
                aspect = (node.aspect or "").upper().replace("_", " ")
                return _words("SHOW CHANGEFEED", _feed(node.feed), aspect)
            case nodes.RetryDeadLetters() | nodes.DiscardDeadLetters():
                verb = "RETRY" if isinstance(node, nodes.RetryDeadLetters) else "DISCARD"
                numbers = _list(map(str, node.letters))
                return _words(f"{verb} CHANGEFEED", _feed(node.feed), "DEAD LETTERS", numbers)
            case nodes.ShowCdc():
                return f"SHOW CDC {node.aspect.upper()}"
            case _:
                return self.plain(node)

    def plain(self, node: Statement) -> str:
        """The words of the statement's name, then its fields."""
        if not is_dataclass(node):
            raise TypeError(f"not a statement: {type(node).__name__}")
        given = (getattr(node, f.name) for f in fields(node) if f.compare)
        return _words(_CAPITALS.sub(" ", type(node).__name__).upper(), *map(self.part, given))

    def part(self, part: Statement | FeedRef | str) -> str:
        if isinstance(part, FeedRef):
            return _feed(part)
        return name(part) if isinstance(part, str) else self.print(part)

    def create(self, node: nodes.CreateChangefeed) -> str:
        return _words(_creating(node), None if node.query else "FOR", self.feed(node))

    def feed(self, node: nodes.CreateChangefeed) -> str:
        """Everything after the name, and after FOR where there is no query."""
        if node.query is not None:
            return _words(
                None if node.sink is None else f"INTO {self.uri(node.sink)}",
                self.options(node.options),
                f"AS {self.targets(node.targets)}",
            )
        return _words(
            self.targets(node.targets),
            self.source(node.source),
            None if node.sink is None else f"INTO {self.uri(node.sink)}",
            self.options(node.options),
        )

    def dataset(self, node: nodes.CreateDataset) -> str:
        ignored = _list(name(each.text) for each in node.ignored)
        return _words(
            _creating(node),
            f"FOR DATASET {self.uri(node.location)}",
            f"KEY ({_list(name(each.text) for each in node.keys)})",
            f"EXCEPT ({ignored})" if ignored else None,
            None if node.sink is None else f"INTO {self.uri(node.sink)}",
            self.options(node.options),
        )

    def schedule(self, node: nodes.CreateSchedule) -> str:
        given = _list(map(self.option, node.options))
        return _words(
            "CREATE OR REPLACE SCHEDULE" if node.or_replace else "CREATE SCHEDULE",
            "IF NOT EXISTS" if node.if_not_exists else None,
            None if node.name is None else name(node.name),
            "FOR CHANGEFEED",
            self.feed(node.statement),
            f"RECURRING {_literal(node.recurring)}",
            f"WITH SCHEDULE OPTIONS {given}" if given else None,
        )

    def action(self, action: nodes.AlterAction) -> str:
        match action:
            case nodes.AlterAdd():
                return _words("ADD", self.targets(action.targets), self.options(action.options))
            case nodes.AlterDrop():
                return f"DROP {self.targets(action.targets)}"
            case nodes.AlterSet():
                return f"SET {_list(map(self.option, action.options))}"
            case nodes.AlterUnset():
                return f"UNSET {_list(name(option.text) for option in action.names)}"
            case nodes.AlterInto():
                return f"INTO {self.uri(action.sink)}"
            case nodes.AlterFilter():
                patterns = _list(map(_pattern, action.patterns))
                verb = "SET" if patterns else "UNSET"
                return _words(verb, action.filter.upper(), "TABLES", patterns)
            case nodes.AlterRescan():
                return _words("RESCAN", _list(map(_qualified, action.tables)))

    def selection(self, node: nodes.ShowWhere) -> str:
        order = _list(map(_ordering, node.order_by))
        return _words(
            self.print(node.statement),
            None if node.where is None else f"WHERE {_test(node.where)}",
            order and f"ORDER BY {order}",
            None if node.limit is None else f"LIMIT {node.limit}",
        )

    def targets(self, targets: tuple[FeedTarget, ...]) -> str:
        """A plain table after a list of patterns needs TABLE, else it would be a pattern."""
        printed = []
        after_patterns = False
        for target in targets:
            text = self.target(target)
            is_table = isinstance(target, nodes.TableTarget)
            printed.append(f"TABLE {text}" if after_patterns and is_table else text)
            after_patterns = isinstance(target, nodes.SchemaTarget | nodes.DatabaseTarget) and bool(
                target.patterns
            )
        return _list(printed)

    def target(self, target: FeedTarget) -> str:
        match target:
            case nodes.TableTarget(query=nodes.Query() as query):
                return _words(
                    f"SELECT {query.items} FROM {_qualified(target.name)}",
                    None if query.alias is None else f"AS {name(query.alias)}",
                    *(self.join(target, query, join) for join in query.joins),
                    f"WHERE {query.where}" if query.where else None,
                    f"GROUP BY {query.group}" if query.group else None,
                )
            case nodes.TableTarget():
                ranged = target.values_from or target.values_to
                return _words(
                    _qualified(target.name),
                    f"({_list(map(name, target.columns))})" if target.columns else None,
                    f"VALUES FROM {_row(target.values_from)} TO {_row(target.values_to)}"
                    if ranged
                    else None,
                    None if target.partition is None else f"PARTITION {name(target.partition)}",
                    None if target.topic is None else f"AS {name(target.topic)}",
                )
            case nodes.SchemaTarget():
                return _words("SCHEMA", _qualified(target.name), _narrowed(target))
            case nodes.DatabaseTarget():
                return _words("DATABASE", _qualified(target.name), _narrowed(target))
            case nodes.MessagesTarget():
                topic = None if target.topic is None else f"AS {name(target.topic)}"
                return _words("MESSAGES PREFIX", _list(map(string, target.prefixes)), topic)

    def join(self, target: nodes.TableTarget, query: nodes.Query, join: nodes.LookupJoin) -> str:
        table = name(query.alias or target.name.parts[-1])
        keys = (f"{table}.{name(own)} = {name(join.alias)}.{name(key)}" for own, key in join.keys)
        return _words(
            "LEFT JOIN" if join.left else "JOIN",
            f"{'.'.join(map(_spark_name, join.parts))} AS {name(join.alias)}",
            f"ON {' AND '.join(keys)}",
        )

    def source(self, source: str | None) -> str | None:
        return None if source is None else f"FROM {name(source)}"

    def uri(self, literal: Literal) -> str:
        return string(self.redact(literal.text))

    def options(self, options: tuple[Option, ...]) -> str | None:
        return f"WITH {_list(map(self.option, options))}" if options else None

    def option(self, option: Option) -> str:
        if option.value is None:
            return name(option.name)
        shown = self.redact_option(option.name, option.value.text)
        value = option.value
        if shown != value.text:
            value = replace(value, text=shown, kind="string")
        return f"{name(option.name)} = {_literal(value)}"


def _timeout(timeout: Literal | None) -> str | None:
    return None if timeout is None else f"TIMEOUT {_literal(timeout)}"


def _creating(node: nodes.CreateChangefeed | nodes.CreateDataset) -> str:
    return _words(
        "CREATE OR REPLACE CHANGEFEED" if node.or_replace else "CREATE CHANGEFEED",
        "IF NOT EXISTS" if node.if_not_exists else None,
        None if node.name is None else name(node.name),
    )


def _altered(
    node: nodes.AlterChangefeed
    | nodes.RenameChangefeed
    | nodes.ChangeOwner
    | nodes.SkipTransaction,
) -> str:
    return _words("ALTER CHANGEFEED", "IF EXISTS" if node.if_exists else None, _feed(node.feed))


def _which(verb: str, feeds: tuple[FeedRef, ...], if_exists: bool = False) -> str:
    if not feeds:
        return f"{verb} ALL CHANGEFEEDS"
    exists = "IF EXISTS" if if_exists else None
    return _words(f"{verb} CHANGEFEED", exists, _list(map(_feed, feeds)))
