"""Statements of DDL in PostgreSQL's log: our event triggers write them there as messages.

The log has no statements. With ``ddl_events=true`` in the URI of the connection two event triggers
write each statement that defines a table into the log, inside of its transaction. They never make a
statement fail, and everything that is made here carries our mark: what does not is left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import errors

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.sql import quoted
from changefeed.core.telemetry import log
from changefeed.sources.decoded.statement_text import shown
from changefeed.sources.postgres.connect import PsycopgConnection
from changefeed.sources.postgres.logical_messages import FIRST_VERSION

#: What the prefix of such a message begins with; the name of the triggers' schema follows.
PREFIX = "changefeed.ddl/"
_MARK = "made by changefeed"
#: For VALIDATE and CREATE.
NOTICE = (
    "ddl_events=true lets changefeed make two event triggers and a function in a schema of its own "
    "(changefeed_...), which write statements of DDL into the log; they go with the last feed of "
    "the connection, or when ddl_events is taken out of its URI"
)
_NAME_MAX = 63
_RENAMES = re.compile(r"\bRENAME\s+TO\b|\bSET\s+SCHEMA\b", re.I)

#: A partition counts as its root: that is the table that a feed watches.
_MAKE = """\
CREATE SCHEMA {name};
COMMENT ON SCHEMA {name} IS {mark};
CREATE FUNCTION {name}.tell() RETURNS event_trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $changefeed$
DECLARE found json;
BEGIN
  IF tg_event = 'sql_drop' THEN
    SELECT json_agg(json_build_object('oid', objid::int8, 'schema', schema_name,
                                      'name', object_name, 'part', false))
    INTO found FROM pg_event_trigger_dropped_objects()
    WHERE object_type = 'table' AND NOT is_temporary;
  ELSE
    SELECT json_agg(json_build_object('oid', c.oid::int8, 'schema', n.nspname,
                                      'name', c.relname, 'part', t.part))
    INTO found FROM (
      SELECT coalesce(pg_partition_root(d.oid), d.oid) AS oid,
             bool_and(d.oid <> coalesce(pg_partition_root(d.oid), d.oid)) AS part
      FROM (
        SELECT coalesce(i.indrelid, e.objid) AS oid
        FROM pg_event_trigger_ddl_commands() e LEFT JOIN pg_index i ON i.indexrelid = e.objid
        WHERE e.classid = 'pg_class'::regclass
      ) d GROUP BY 1
    ) t
    JOIN pg_class c ON c.oid = t.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p';
  END IF;
  IF found IS NOT NULL THEN
    PERFORM pg_logical_emit_message(true, {prefix}, json_build_object(
      'tag', tg_tag, 'tables', found,
      'statement', left(coalesce(current_query(), tg_tag), 65536))::text);
  END IF;
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING 'changefeed does not tell its feeds of this statement: %', sqlerrm;
END $changefeed$;
CREATE EVENT TRIGGER {name} ON ddl_command_end
WHEN tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE', 'CREATE INDEX')
EXECUTE FUNCTION {name}.tell();
COMMENT ON EVENT TRIGGER {name} IS {mark};
CREATE EVENT TRIGGER {drops} ON sql_drop WHEN tag IN ('DROP TABLE', 'DROP SCHEMA', 'DROP OWNED')
EXECUTE FUNCTION {name}.tell();
COMMENT ON EVENT TRIGGER {drops} IS {mark};"""

_UNDO = """\
DROP EVENT TRIGGER IF EXISTS {drops};
DROP EVENT TRIGGER IF EXISTS {name};
DROP FUNCTION IF EXISTS {name}.tell();
DROP SCHEMA IF EXISTS {name};"""


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A statement that defined tables.

    Attributes:
        tag: its kind as PostgreSQL calls it.
        tables: oid, schema and name of each table, and whether only a partition of it is concerned.
        statement: its text without secrets.
    """

    tag: str
    tables: tuple[tuple[int, str, str, bool], ...]
    statement: str

    def kind(self, *, part: bool) -> str:
        """What happens to a table: see :attr:`changefeed.core.events.Ddl.kind`."""
        verb = self.tag.split()[0]
        if part or self.tag == "CREATE INDEX":
            return "ALTER"
        if verb == "ALTER" and _RENAMES.search(self.statement):
            return "RENAME"
        return "CREATE" if verb == "SELECT" else verb


def read_definition(content: bytes) -> TableDefinition | None:
    """What a message of the triggers says; None for one that they did not write."""
    try:
        found = json.loads(content)
        tables = tuple(
            (int(t["oid"]), str(t["schema"]), str(t["name"]), bool(t["part"]))
            for t in found["tables"]
        )
        return TableDefinition(str(found["tag"]), tables, shown(str(found["statement"])))
    except (ValueError, TypeError, KeyError):
        return None


def make_text(name: str) -> str:
    """The SQL that makes the triggers, for a user who may."""
    return _text(_MAKE, name)


def undo_text(name: str) -> str:
    """The SQL that removes them."""
    return _text(_UNDO, name)


def _text(template: str, name: str) -> str:
    drops = quoted(_drops(name))
    return template.format(
        name=quoted(name), drops=drops, mark=f"'{_MARK}'", prefix=f"'{PREFIX}{name}'"
    )


def _drops(name: str) -> str:
    """The name of the trigger for tables that are dropped."""
    return f"{name[: _NAME_MAX - 5]}_drop"


def present(connection: PsycopgConnection, name: str) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM pg_catalog.pg_event_trigger"
        " WHERE evtname = ANY(%s) AND evtenabled <> 'D'"
        " AND pg_catalog.obj_description(oid, 'pg_event_trigger') = %s",
        [[name, _drops(name)], _MARK],
    ).fetchone()
    return found is not None and int(found[0]) == 2


def may_make(connection: PsycopgConnection) -> bool:
    """Whether the role may create event triggers: a superuser, or what stands for one at RDS."""
    found = connection.execute(
        "SELECT rolsuper OR EXISTS (SELECT FROM pg_catalog.pg_roles g"
        " WHERE g.rolname = 'rds_superuser' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER'))"
        " FROM pg_catalog.pg_roles r WHERE rolname = current_user"
    ).fetchone()
    return found is not None and bool(found[0])


def problems(
    connection: PsycopgConnection, name: str, publication: str = ""
) -> Iterator[ChangefeedError]:
    """What keeps the triggers from being there when a feed begins. With an administrator's
    ``publication`` the triggers are an administrator's, too."""
    if connection.info.server_version < FIRST_VERSION:
        yield ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "ddl_events=true needs PostgreSQL 14 or newer",
            hint="take ddl_events out of the connection's URI.",
        )
    elif not present(connection, name) and (publication or not may_make(connection)):
        yield ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING,
            f"ddl_events=true needs event triggers, and with publication={publication} changefeed "
            "creates nothing in the database"
            if publication
            else "ddl_events=true needs event triggers, which only a superuser may create",
            hint=f"let an administrator run:\n{make_text(name)}\n"
            f"-- and to undo it, once no feed uses the connection:\n{undo_text(name)}",
        )


def make(connection: PsycopgConnection, name: str, *, allowed: bool = True) -> bool:
    """Make the triggers unless they are there or it is not ``allowed``; whether they are, in the
    end."""
    if present(connection, name):
        return True
    too_old = connection.info.server_version < FIRST_VERSION
    if too_old or not allowed or not may_make(connection):
        log.warning("there are no event triggers for ddl_events; VALIDATE says how to make them")
        return False
    with connection.transaction():
        _remove(connection, name)
        connection.execute(make_text(name))
    return True


def remove(connection: PsycopgConnection, name: str) -> None:
    """Remove what :func:`make` made, as far as it carries our mark and the role may."""
    try:
        with connection.transaction():
            _remove(connection, name)
    except (errors.InsufficientPrivilege, errors.DependentObjectsStillExist) as error:
        log.warning(
            "the event triggers of ddl_events stay (%s); remove them with: %s",
            error.diag.message_primary,
            " ".join(undo_text(name).split()),
        )


def _remove(connection: PsycopgConnection, name: str) -> None:
    marks = connection.execute(
        "SELECT pg_catalog.obj_description(oid, 'pg_namespace')"
        " FROM pg_catalog.pg_namespace WHERE nspname = %(name)s"
        " UNION ALL SELECT pg_catalog.obj_description(oid, 'pg_event_trigger')"
        " FROM pg_catalog.pg_event_trigger WHERE evtname IN (%(name)s, %(drops)s)",
        {"name": name, "drops": _drops(name)},
    ).fetchall()
    if marks and all(mark == _MARK for (mark,) in marks):
        connection.execute(undo_text(name))
