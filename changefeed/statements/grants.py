"""GRANT, REVOKE and SHOW GRANTS: roles of users, and their rights on tables and connections."""

from __future__ import annotations

from collections.abc import Iterator

from changefeed.catalog import DesiredStatus, UserRight
from changefeed.core.errors import ChangefeedError, Code
from changefeed.options import to_span
from changefeed.plan.names import choose_source
from changefeed.plan.targets import look_up, wishes
from changefeed.statements.connections import existing_connection
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.create import FEED_COLUMNS
from changefeed.statements.notices import not_taken_yet
from changefeed.statements.rights import Role
from changefeed.statements.times import date
from changefeed.statements.users import feeds_end, known_user
from changefeed.statements.values import Cell
from grammar import nodes
from grammar.printer import name as name_sql
from grammar.spelling import did_you_mean

COLUMNS = ("user", "right", "kind", "source", "schema", "name", "granted")


@handles(nodes.Grant)
def grant(statement: nodes.Grant, context: Context) -> Result:
    """GRANT: what it names is looked for at its source."""
    users = [known_user(user.text, user.span, context) for user in statement.users]
    if statement.kind is nodes.GrantKind.ROLE:
        role = _role(statement.names[0])
        return _give_role({user.name: role for user in users}, "GRANT", context)
    places = list(_places(statement, context))
    context.catalog.grant(
        UserRight(user.name, place.source, place.schema, place.name)
        for user in users
        for place in places
    )
    context.host.wake()
    return Result("done", tag="GRANT")


@handles(nodes.Revoke)
def revoke(statement: nodes.Revoke, context: Context) -> Result:
    """REVOKE: the sources are not asked; returns when the feeds that need the right stand still."""
    users = [known_user(user.text, user.span, context) for user in statement.users]
    if statement.kind is nodes.GrantKind.ROLE:
        role = _role(statement.names[0])
        for user in users:
            if user.role != role or role is Role.VIEWER:
                raise _no_role(user.name, user.role, role, statement)
        return _give_role({user.name: Role.VIEWER for user in users}, "REVOKE", context)
    taken = []
    for user in users:
        held = context.catalog.grants(user.name)
        taken += [_held(name, user.name, held, statement.kind) for name in statement.names]
    ended = context.catalog.revoke(taken)
    return Result("done", notices=feeds_end(ended, context), tag="REVOKE")


@handles(nodes.ChangeOwner)
def give(statement: nodes.ChangeOwner, context: Context) -> Result:
    """ALTER CHANGEFEED f OWNER TO user: what an admin owns is a feed of the admins.

    An owner gives a feed to users whose rights bound it as the own ones did.
    """
    known, skipped = context.existing((statement.feed,), statement.if_exists)
    if not known:
        return Result("done", notices=skipped, tag="ALTER CHANGEFEED")
    job = context.job(statement.feed)
    if job.sinkless:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f'changefeed "{job.name}" is a stream to its client, and belongs to that user',
            hint="only feeds with a sink change their owner.",
            span=to_span(statement.feed.span),
        )
    user = known_user(statement.user, statement.name_span, context)
    owner = None if user.role == Role.ADMIN else user.name
    if owner is None and context.session.bound is not None:
        raise ChangefeedError(
            Code.RIGHT_MISSING,
            f"user {name_sql(user.name)} is an admin, and only an admin gives a feed to the admins",
            hint="name a user who is no admin and has the rights that the feed needs.",
            span=to_span(statement.name_span),
        )
    try:
        given = context.catalog.give_job(job.id, owner, by=context.session.user)
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    context.host.wake()
    notices = not_taken_yet(given, context)
    if given.wanted is DesiredStatus.PAUSED:
        notices = [
            f'changefeed "{given.name}" is paused: RESUME CHANGEFEED {given.name} continues it'
        ]
    return Result("rows", FEED_COLUMNS, [(given.id, given.name)], notices, tag="ALTER CHANGEFEED")


@handles(nodes.ShowGrants)
def show_grants(statement: nodes.ShowGrants, context: Context) -> Result:
    """SHOW GRANTS: of all users to an admin, to others their own."""
    bound = context.session.bound
    name = statement.name or bound
    if bound is not None and name != bound:
        raise ChangefeedError(
            Code.RIGHT_MISSING,
            f"user {name_sql(bound)} sees the own rights only",
            hint="write SHOW GRANTS; an admin sees those of all users.",
            span=to_span(statement.name_span),
        )
    if statement.name is not None and bound is None:
        known_user(statement.name, statement.name_span, context)
    rows: list[tuple[Cell, ...]] = [
        (
            each.user,
            each.right,
            each.kind,
            each.source,
            each.schema or None,
            each.name or None,
            date(each.granted),
        )
        for each in context.catalog.grants(name)
    ]
    return Result(columns=COLUMNS, rows=rows)


def _give_role(roles: dict[str, Role], tag: str, context: Context) -> Result:
    ended = []
    for user, role in roles.items():
        ended += context.catalog.alter_user(user, role=str(role))[1]
    return Result("done", notices=feeds_end(ended, context), tag=tag)


def _role(name: nodes.QualifiedName) -> Role:
    (text,) = name.parts
    if text in list(Role):
        return Role(text)
    near = did_you_mean(text, list(Role))
    raise ChangefeedError(
        Code.INVALID_OPTION_VALUE,
        f'there is no role "{text}"',
        hint=f'did you mean "{near}"?'
        if near
        else "roles are viewer, operator and admin; a right is CHANGEFEED ON TABLE t, or USAGE ON "
        "EXTERNAL CONNECTION c.",
        span=to_span(name.span),
    )


def _no_role(user: str, has: str, role: Role, statement: nodes.Revoke) -> ChangefeedError:
    least = role is Role.VIEWER
    return ChangefeedError(
        Code.INVALID_OPTION_VALUE,
        "every user is a viewer at least"
        if least
        else f"user {name_sql(user)} has the role {has}, not {role}",
        hint=f"DROP USER {name_sql(user)} ends the login." if least else "SHOW USERS lists them.",
        span=to_span(statement.names[0].span),
    )


def _places(statement: nodes.Grant, context: Context) -> Iterator[UserRight]:
    """What the names stand for now.

    Raises:
        ChangefeedError: CF1101, CF1302 there is no such table, schema or connection; as the source.
    """
    if statement.kind is nodes.GrantKind.CONNECTION:
        for name in statement.names:
            yield UserRight("", existing_connection(name.parts[0], name.span, context).name)
        return
    kind = nodes.TableTarget if statement.kind is nodes.GrantKind.TABLE else nodes.SchemaTarget
    for name in statement.names:
        target = kind(name, span=name.span)
        parts = ".".join(
            map(name_sql, name.parts[-2:] if kind is nodes.TableTarget else name.parts[-1:])
        )
        chosen = choose_source(
            context.catalog,
            [target],
            None,
            None,
            context.session.source_in(context.catalog),
            instead=f"write ON {statement.kind.upper()} {{source}}.{parts}",
        )
        source = context.source(chosen.name)
        if isinstance(target, nodes.SchemaTarget):
            try:
                source.matching(name.parts[-1])
            except ChangefeedError as error:
                error.span = error.span or to_span(name.span)
                raise
            yield UserRight("", chosen.name, name.parts[-1])
            continue
        asked, _ = wishes([target], source, diff=False)
        found, problems = look_up(asked, source)
        for problem in problems:
            raise problem.located(context.text)
        for place in found:
            table = place.schema.table
            yield UserRight("", table.source, table.schema, table.name)


def _held(
    name: nodes.QualifiedName, user: str, held: list[UserRight], kind: nodes.GrantKind
) -> UserRight:
    """The one right of a user that a name stands for.

    Raises:
        ChangefeedError: CF1101 there is none, or there are several.
    """
    parts = name.parts
    of_kind = [each for each in held if each.kind == kind]
    fits = [each for each in of_kind if each.parts[-len(parts) :] == parts]
    if kind is nodes.GrantKind.TABLE and len(parts) == 2:
        fits += [each for each in of_kind if (each.source, each.name) == parts and each not in fits]
    if len(fits) == 1:
        return fits[0]
    written = ".".join(map(name_sql, parts))
    several = " and ".join(each.place for each in fits)
    raise ChangefeedError(
        Code.NAME_UNKNOWN,
        f"{kind} {written} is one of several that user {name_sql(user)} has a right on: {several}"
        if fits
        else f"user {name_sql(user)} has no such right on {kind} {written}",
        hint="write the whole name." if fits else f"SHOW GRANTS FOR {name_sql(user)} lists them.",
        span=to_span(name.span),
    )
