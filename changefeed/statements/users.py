"""CREATE, ALTER, DROP USER, SHOW USERS and SHOW AUDIT: who uses a node, and what was done.

And ALTER STATE ROTATE KEY.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from changefeed.catalog import User
from changefeed.catalog.users import KEPT_AUDIT
from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.quantities import parse_nanos
from changefeed.options import OptionReader, to_span
from changefeed.plan.names import unknown_name
from changefeed.plan.own_options import USER_OPTIONS, own_values
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.control import until_paused
from changefeed.statements.rights import Role
from changefeed.statements.times import date, moment
from changefeed.statements.values import Cell
from grammar import nodes

COLUMNS = ("user", "role", "created", "expires", "seen")
TOKEN_COLUMNS = ("user", "role", "expires", "token")
AUDIT_COLUMNS = ("at", "user", "origin", "statement", "code")

#: Entries of SHOW AUDIT without WHERE, ORDER BY or LIMIT.
SHOWN_AUDIT = 100

_ONCE = "the token is shown only now; a client sends it as Authorization: Bearer, or as a password"


@handles(nodes.CreateUser)
def create_user(statement: nodes.CreateUser, context: Context) -> Result:
    """CREATE USER: shows the token, which is stored as its digest."""
    given = _options(statement, context)
    if given.pop("token", None):
        raise ChangefeedError(
            Code.OPTIONS_CONTRADICT, "a new user has a new token: leave out the option token"
        )
    role, expires = given.get("role") or Role.VIEWER, given.get("expires")
    try:
        token = context.catalog.create_user(statement.name, str(role), _until(expires))
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    return _token(statement.name, token, "CREATE USER", context)


@handles(nodes.AlterUser)
def alter_user(statement: nodes.AlterUser, context: Context) -> Result:
    """ALTER USER: another role, another end, a new token in place of the old one."""
    known_user(statement.name, statement.name_span, context)
    changes = _options(statement, context)
    new = bool(changes.pop("token", None))
    token, ended = context.catalog.alter_user(statement.name, new_token=new, **changes)
    notices = feeds_end(ended, context)
    if token is None:
        return Result("done", notices=notices, tag="ALTER USER")
    result = _token(statement.name, token, "ALTER USER", context)
    return replace(result, notices=[*result.notices, *notices])


@handles(nodes.DropUser)
def drop_user(statement: nodes.DropUser, context: Context) -> Result:
    """DROP USER: the token is refused from now on, and the user's feeds are paused."""
    ended = context.catalog.drop_user(statement.name)
    if ended is not None:
        return Result("done", notices=feeds_end(ended, context), tag="DROP USER")
    if not statement.if_exists:
        known_user(statement.name, statement.name_span, context)
    notice = f'user "{statement.name}" does not exist, skipping'
    return Result("done", notices=[notice], tag="DROP USER")


@handles(nodes.AlterStateRotateKey)
def rotate_key(_statement: nodes.AlterStateRotateKey, context: Context) -> Result:
    """ALTER STATE ROTATE KEY."""
    key, count = context.catalog.rotate_key()
    notice = (
        f"{count} values are encrypted by key {key}"
        if count
        else f"key {key} is in use already: put the new key before it where the keys are"
    )
    return Result("done", notices=[notice], tag="ALTER STATE")


@handles(nodes.ShowUsers)
def show_users(statement: nodes.ShowUsers, context: Context) -> Result:
    """SHOW USERS."""
    now = context.clock.now().wall
    rows: list[tuple[Cell, ...]] = [
        (u.name, u.role, date(u.created), moment(u.expires, now), moment(u.seen, now))
        for u in context.catalog.users()
    ]
    return Result(columns=COLUMNS, rows=rows)


@handles(nodes.ShowAudit)
def show_audit(statement: nodes.ShowAudit, context: Context) -> Result:
    """SHOW AUDIT."""
    rows: list[tuple[Cell, ...]] = [
        (date(entry.at), entry.user, entry.origin, entry.statement, entry.code)
        for entry in context.catalog.audit(KEPT_AUDIT if context.selecting else SHOWN_AUDIT)
    ]
    return Result(columns=AUDIT_COLUMNS, rows=rows)


def _options(
    statement: nodes.CreateUser | nodes.AlterUser, context: Context
) -> dict[str, str | int | None]:
    """The options that were given: ``expires`` as ns since 1970, None for never.

    Raises:
        ChangefeedError: CF1203, CF1204, CF1205 an option is wrong.
    """
    reading = OptionReader(context.clock, context.text)
    values = own_values(statement.options, USER_OPTIONS, "a user", reading)
    given: dict[str, str | int | None] = {n: v.text.lower() for n, v in values.items()}
    expires = values.get("expires")
    if expires is not None and expires.text.lower() == "never":
        given["expires"] = None
    elif expires is not None:
        try:
            length = parse_nanos(expires.text)
        except ValueError:
            length = 0
        if length <= 0:
            reading.problem(
                Code.INVALID_OPTION_VALUE,
                f"expires is a duration as '90d', or 'never', not {expires.text}",
                to_span(expires.span),
            )
        given["expires"] = context.clock.now().wall + length
    raise_all(reading.problems)
    return given


def _until(expires: str | int | None) -> int | None:
    return expires if isinstance(expires, int) else None


def _token(name: str, token: str, tag: str, context: Context) -> Result:
    user = next(user for user in context.catalog.users() if user.name == name)
    expires = moment(user.expires, context.clock.now().wall)
    row: tuple[Cell, ...] = (name, user.role, expires, token)
    return Result("rows", TOKEN_COLUMNS, [row], [_ONCE], tag=tag)


def known_user(name: str, span: nodes.Span | None, context: Context) -> User:
    """The user of a name.

    Raises:
        ChangefeedError: CF1101 with the nearest name.
    """
    known = {user.name: user for user in context.catalog.users()}
    if name in known:
        return known[name]
    raise unknown_name("user", name, known, "SHOW USERS lists them.", span)


def feeds_end(ended: Sequence[int], context: Context) -> list[str]:
    """Wait until the feeds that a right was taken from stand still; what to say of them."""
    if not ended:
        return []
    jobs = [job for job in context.catalog.jobs() if job.id in ended]
    context.host.wake()
    notices = []
    for job in jobs:
        why = context.catalog.hindrance(job.id)
        # What streams to a client is gone when it stops.
        ends = (
            f'the stream "{job.name}" ends'
            if job.sinkless
            else f'changefeed "{job.name}" is paused'
        )
        notices.append(ends + (f": {why.message}" if why else ""))
    return [*notices, *until_paused([job for job in jobs if job.status.active], context)]
