"""``changefeed apply``: connections, functions, users with their rights, feeds and schedules of a
state made equal to statements.

A statement may refer to a secret as ``${NAME}`` inside a string: its value comes from an
environment variable. SHOW CREATE ALL, and so ``changefeed export``, write them like that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from changefeed.api import Interpreter, Result, Session, parsed_statement
from changefeed.catalog import Job, Schedule
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.uri import REDACTED, redact
from changefeed.dataset.definition import is_definition
from changefeed.statements.rights import Role
from grammar import nodes
from grammar.printer import name as name_sql
from grammar.printer import to_sql
from grammar.split import LexemeKind, change_lexemes

_REFERENCE = re.compile(r"\$\{(\w+)\}")
#: Feeds that programs make for themselves.
_READERS = "reader:"

Made = nodes.CreateChangefeed | nodes.CreateDataset


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """One difference between statements and a state.

    Attributes:
        sign: ``+`` makes something, ``~`` changes it, ``-`` drops it.
        what: its kind and name.
        details: what differs, without secrets.
        statement: carries it out; holds secrets.
        missing: environment variables that it needs and that are not set.
    """

    sign: str
    what: str
    details: tuple[str, ...] = ()
    statement: str = field(default="", repr=False)
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    node: nodes.Statement
    missing: tuple[str, ...]


class Declaration:
    """What statements say there shall be, compared with a state."""

    def __init__(
        self, texts: Iterable[str], interpreter: Interpreter, environment: Mapping[str, str]
    ) -> None:
        """
        Args:
            texts: single statements.
            interpreter: of the state.
            environment: values of the references.

        Raises:
            ChangefeedError: CF1001 a text is not a statement; CF1303 it creates nothing that has a
                name; CF1102 two create the same.
        """
        self._interpreter = interpreter
        self._session = Session(client="apply")
        self._declared: dict[tuple[str, str], _Entry] = {}
        self._granted: dict[tuple[str, tuple[str, ...]], nodes.GrantKind] = {}
        self._sources: dict[str, str | None] = {}
        for text in texts:
            self._declare(*referenced(text, environment))

    def _declare(self, text: str, missing: tuple[str, ...]) -> None:
        node = parsed_statement(text)
        match node:
            case nodes.Use():
                self._session.source = node.name
                return
            case nodes.CreateConnection():
                key = ("connection", node.name)
            case nodes.CreateFunction():
                key = ("function", node.name)
            case nodes.CreateUser():
                key = ("user", node.name)
            case nodes.Grant() if node.kind is not nodes.GrantKind.ROLE:
                for name, user in product(node.names, node.users):
                    self._granted[user.text, _whole(name, node.kind)] = node.kind
                return
            case nodes.ChangeOwner(feed=nodes.FeedRef(name=str(feed))):
                key = ("owner", feed)
            case nodes.CreateChangefeed(name=str()) | nodes.CreateDataset(name=str()):
                key = ("changefeed", node.name or "")
                self._sources[key[1]] = self._session.source
            case nodes.CreateSchedule(name=str()):
                key = ("schedule", node.name or "")
                source = node.statement.source or self._session.source
                node = replace(node, statement=replace(node.statement, source=source))
            case _:
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    "changefeed apply takes statements that create something with a name, and USE",
                    hint="CREATE EXTERNAL CONNECTION, FUNCTION, USER, CHANGEFEED or SCHEDULE name "
                    "...; GRANT of a right; ALTER CHANGEFEED name OWNER TO user; other statements "
                    "run by changefeed -f.",
                ).located(text)
        if key in self._declared:
            raise ChangefeedError(
                Code.NAME_TAKEN,
                f"two statements give changefeed {key[1]} an owner"
                if key[0] == "owner"
                else f"two statements create the {key[0]} {key[1]}",
            ).located(text)
        self._declared[key] = _Entry(node, missing)

    # -- what differs ---------------------------------------------------------------------

    def connections(self) -> Iterator[ApplyStep]:
        """Connections, functions and users that are missing or differ; of users only the role is
        compared.

        Raises:
            ChangefeedError: CF1303 a function differs: feeds were made with the old one.
        """
        catalog = self._interpreter.catalog
        known = {c.name: c.uri for c in catalog.connections()}
        functions = {f.name: f for f in catalog.functions()}
        roles = {user.name: user.role for user in catalog.users()}
        for (_, name), declared in self._declared.items():
            node = declared.node
            if isinstance(node, nodes.CreateConnection):
                yield from _connection_change(node, declared.missing, known.get(name))
            elif isinstance(node, nodes.CreateUser):
                yield from _user_change(node, roles.get(name))
            elif isinstance(node, nodes.CreateFunction):
                old = functions.get(name)
                if old is None:
                    yield ApplyStep("+", f"function {name}", statement=to_sql(node))
                elif (old.reference, old.path) != (
                    node.reference.text,
                    node.path.text if node.path else "",
                ):
                    raise ChangefeedError(
                        Code.NOT_SUPPORTED,
                        f"function {name} differs, and a function that is there stays as it is",
                        hint=f"DROP FUNCTION {name} first, or give this one another name.",
                    )

    def grants(self) -> Iterator[ApplyStep]:
        """Rights that are missing."""
        there = {(each.user, each.parts) for each in self._interpreter.catalog.grants()}
        for (user, parts), kind in self._granted.items():
            if (user, parts) not in there:
                sql = to_sql(nodes.Grant(kind, (nodes.QualifiedName(parts),), (nodes.Name(user),)))
                yield ApplyStep("+", _right(user, parts), statement=sql)

    def feeds(self) -> Iterator[ApplyStep]:
        """Feeds and schedules that are missing or differ.

        Raises:
            ChangefeedError: a statement is wrong, or asks for what an ALTER cannot change.
        """
        coming = any(step.sign == "+" for step in self.connections())
        for (kind, name), declared in self._declared.items():
            if kind == "changefeed" and isinstance(declared.node, Made):
                change = self._feed_change(name, declared.node, coming)
                if change is not None:
                    yield replace(change, missing=declared.missing)
        for (_, name), declared in self._declared.items():
            if isinstance(declared.node, nodes.CreateSchedule):
                change = self._schedule_change(name, declared.node, coming)
                if change is not None:
                    yield replace(change, missing=declared.missing)

    def _schedule_change(
        self, name: str, node: nodes.CreateSchedule, coming: bool
    ) -> ApplyStep | None:
        """First runs are not compared."""
        there = any(each.name == name for each in self._interpreter.catalog.schedules())
        query = node.statement.query is not None
        sql = to_sql(replace(node, if_not_exists=False, or_replace=True))
        return self._difference(f"schedule {name}", sql, there, coming, spark=query)

    def _feed_change(self, name: str, node: Made, coming: bool) -> ApplyStep | None:
        """``coming``: connections are yet to be made, and the feed may name one of them."""
        there = self._interpreter.catalog.find_job(name) is not None
        whole = replace(node, if_not_exists=False, or_replace=True)
        if isinstance(whole, nodes.CreateChangefeed):
            whole = replace(whole, source=whole.source or self._sources[name])
        spark = isinstance(whole, nodes.CreateDataset) or whole.query is not None
        return self._difference(f"changefeed {name}", to_sql(whole), there, coming, spark=spark)

    def _difference(
        self, what: str, sql: str, there: bool, coming: bool, *, spark: bool
    ) -> ApplyStep | None:
        """What CREATE OR REPLACE would change; None: nothing. ``spark``: its plan needs Spark."""
        if spark and not there:
            return ApplyStep("+", what, statement=sql)
        try:
            explained = self._interpreter.execute(f"EXPLAIN {sql}", self._session)
        except ChangefeedError as error:
            if not coming or error.code is not Code.NAME_UNKNOWN:
                raise
            later = ("is compared when its connections are there",)
            return ApplyStep("~" if there else "+", what, later, sql)
        if not there:
            return ApplyStep("+", what, statement=sql)
        rows = [tuple(map(str, row)) for row in explained.rows]
        if rows[0][0] == "nothing":
            return None
        return ApplyStep("~", what, tuple(f"{stage} {detail}" for stage, detail in rows), sql)

    def owners(self) -> Iterator[ApplyStep]:
        """Feeds whose owner is another user than a statement says.

        Raises:
            ChangefeedError: CF1101 no statement makes that feed or user, and there is none.
        """
        catalog = self._interpreter.catalog
        roles = {user.name: user.role for user in catalog.users()}
        for (_, name), declared in self._declared.items():
            node = declared.node
            if not isinstance(node, nodes.ChangeOwner):
                continue
            job = catalog.find_job(name)
            for what, known in (("changefeed", job is not None), ("user", node.user in roles)):
                named = name if what == "changefeed" else node.user
                if not known and (what, named) not in self._declared:
                    raise ChangefeedError(
                        Code.NAME_UNKNOWN,
                        f'{what} "{named}" does not exist: ALTER CHANGEFEED {name_sql(name)} OWNER '
                        f"TO {name_sql(node.user)} needs it",
                        hint=f"declare it, too: CREATE {what.upper()} {name_sql(named)} ...",
                    )
            wanted = None if roles.get(node.user) == Role.ADMIN else node.user
            if job is None or job.owner != wanted:
                yield ApplyStep(
                    "~", f"owner of changefeed {name}", (f"change to {node.user}",), to_sql(node)
                )

    def surplus(self) -> Iterator[ApplyStep]:
        """What no statement names: feeds and schedules, then functions and connections without one
        that stays, users if a statement creates any, and rights if a statement gives any.

        Feeds that programs read from are left alone.
        """
        catalog = self._interpreter.catalog
        named = {name for kind, name in self._declared if kind == "changefeed"}
        jobs = catalog.jobs()
        schedules = catalog.schedules()
        runs = catalog.scheduled_jobs()
        gone = [
            job
            for job in jobs
            if job.name not in named and job.id not in runs and not _of_a_program(job)
        ]
        for job in gone:
            yield ApplyStep(
                "-",
                f"changefeed {job.name}",
                statement=f"DROP CHANGEFEED {name_sql(job.name)}",
            )
        for schedule in schedules:
            if ("schedule", schedule.name) not in self._declared:
                sql = f"DROP SCHEDULE {name_sql(schedule.name)}"
                yield ApplyStep("-", f"schedule {schedule.name}", statement=sql)
        for function in catalog.functions():
            if ("function", function.name) not in self._declared:
                yield ApplyStep(
                    "-", f"function {function.name}", statement=f"DROP FUNCTION {function.name}"
                )
        named = {name for kind, name in self._declared if kind == "user"}
        for user in catalog.users() if named else ():
            if user.name not in named:
                sql = to_sql(nodes.DropUser(user.name))
                yield ApplyStep("-", f"user {user.name}", statement=sql)
        for given in catalog.grants() if self._granted else ():
            right = (given.user, given.parts)
            if right not in self._granted and (not named or given.user in named):
                kind, parts = nodes.GrantKind(given.kind), nodes.QualifiedName(given.parts)
                sql = to_sql(nodes.Revoke(kind, (parts,), (nodes.Name(given.user),)))
                yield ApplyStep("-", _right(*right), statement=sql)
        kept = [job for job in jobs if job not in gone]
        stays = [each for each in schedules if ("schedule", each.name) in self._declared]
        users: list[Job | Schedule] = [*kept, *stays]
        used = {name for each in users for name in catalog.connections_of(each)}
        for connection in catalog.connections():
            name = connection.name
            if ("connection", name) in self._declared or name in used:
                continue
            if not is_definition(connection.uri):
                yield ApplyStep(
                    "-",
                    f"connection {name}",
                    statement=f"DROP EXTERNAL CONNECTION {name_sql(name)}",
                )

    # -- carrying out ---------------------------------------------------------------------

    def plan(self, *, prune: bool) -> list[ApplyStep]:
        """Everything that differs; changes nothing."""
        surplus = self.surplus() if prune else ()
        return [
            *self.connections(),
            *self.grants(),
            *self.feeds(),
            *self.owners(),
            *surplus,
        ]

    def apply(self, *, prune: bool) -> Iterator[tuple[ApplyStep, Result]]:
        """Carry out each change, and give it with its result when it is done.

        Connections come first, because feeds are compared with what they name. Nothing is changed
        before all statements were found right; only of feeds that need a connection which is still
        to be made or changed, some problems show after that.

        Raises:
            ChangefeedError: CF1204 an environment variable is not set; else as the statements.
        """
        self._check()
        kinds = (self.connections, self.grants, self.feeds, self.owners)
        for found in (*kinds, self.surplus if prune else tuple):
            for change in list(found()):
                yield change, self._interpreter.execute(change.statement, self._session)

    def _check(self) -> None:
        changes = list(self.connections())
        moved = any(change.what.startswith("connection ") for change in changes)
        changes += [*self.grants(), *self.owners()]
        try:
            changes.extend(self.feeds())
        except ChangefeedError:
            if not moved:
                raise
        for change in changes:
            if change.missing:
                raise ChangefeedError(
                    Code.INVALID_OPTION_VALUE,
                    f"{change.what} needs the environment "
                    f"{'variable' if len(change.missing) == 1 else 'variables'} "
                    f"{', '.join(change.missing)}",
                    hint="set it for changefeed apply.",
                )


def referenced(text: str, environment: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """A statement with the values of its references, and the names of those that have none: they
    are ``redacted``, which means what the state has."""
    missing: list[str] = []

    def value(found: re.Match[str]) -> str:
        if found[1] in environment:
            return environment[found[1]].replace("'", "''")
        missing.append(found[1])
        return REDACTED

    given = change_lexemes(text, {LexemeKind.STRING}, partial(_REFERENCE.sub, value))
    return given, tuple(missing)


def _connection_change(
    node: nodes.CreateConnection, missing: tuple[str, ...], old: str | None
) -> Iterator[ApplyStep]:
    what, written = f"connection {node.name}", node.uri.text
    if old is None:
        sql = to_sql(replace(node, if_not_exists=False))
        yield ApplyStep("+", what, statement=sql, missing=missing)
    elif written not in (old, redact(old)):
        before, after = redact(old), redact(written)
        detail = f"change {before} to {after}" if before != after else "change what is secret of it"
        altered = nodes.AlterConnection(node.name, node.uri, node.options)
        yield ApplyStep("~", what, (detail,), to_sql(altered), missing)


def _user_change(node: nodes.CreateUser, role: str | None) -> Iterator[ApplyStep]:
    what = f"user {node.name}"
    if role is None:
        yield ApplyStep("+", what, statement=to_sql(node))
        return
    given = next((o for o in node.options if o.name == "role" and o.value is not None), None)
    wanted = given.value.text.lower() if given is not None and given.value else str(Role.VIEWER)
    if wanted != role:
        options = (nodes.Option("role", nodes.Literal(wanted)),)
        sql = to_sql(nodes.AlterUser(node.name, options))
        yield ApplyStep("~", what, (f"role {role} to {wanted}",), sql)


def _whole(name: nodes.QualifiedName, kind: nodes.GrantKind) -> tuple[str, ...]:
    """The whole name of what a right is on: the statements have no source of their own."""
    parts = {nodes.GrantKind.TABLE: 3, nodes.GrantKind.SCHEMA: 2}.get(kind, 1)
    if len(name.parts) == parts:
        return name.parts
    raise ChangefeedError(
        Code.NOT_SUPPORTED,
        f"changefeed apply takes the whole name of a {kind}",
        hint="write source.schema.table, or source.schema.",
    )


def _right(user: str, parts: tuple[str, ...]) -> str:
    return f"right of {user} on {'.'.join(map(name_sql, parts))}"


def _of_a_program(job: Job) -> bool:
    return job.sinkless or (job.sink_uri or "").startswith(_READERS)
