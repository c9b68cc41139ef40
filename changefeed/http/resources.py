"""The paths of ``/v1`` that show or steer feeds: one row each, read by the routes and by the
OpenAPI document. Each is a statement under another name, but for what a prompt or the console
reads besides (:class:`Fact`), which every user may see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from changefeed.api import Interpreter, KnownNames, Role
from changefeed.catalog import User
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.version import __version__
from changefeed.http.figures import captures, headroom, promises
from changefeed.http.series import FIGURES, Series
from changefeed.statements.rights import least, permits
from grammar import nodes
from grammar.printer import parts

#: The most rows that ``limit`` of a list may ask for.
MOST_ROWS = 10_000

#: Makes the statement from what a request says, but for its ``limit``.
Maker = Callable[[Mapping[str, Any]], nodes.Statement]


@dataclass(frozen=True, slots=True)
class Resource:
    """One row.

    Attributes:
        method, path: of the request; a part of the path in braces is a name.
        summary: one line for the OpenAPI document.
        make: its statement.
        one: the answer is one object, not a list.
        body: JSON schemas of fields that may be given.
        asks: a source is asked.
    """

    method: str
    path: str
    summary: str
    make: Maker
    one: bool = False
    body: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    asks: bool = False

    @property
    def live(self) -> bool:
        """Its changes can be watched: it is read from the state and changes nothing."""
        return self.method == "GET" and not self.asks

    @property
    def query(self) -> Mapping[str, Mapping[str, Any]]:
        """JSON schemas of the query: a list may have a ``limit``."""
        return {} if self.one or self.method != "GET" else _LIMIT

    def statement(self, given: Mapping[str, Any]) -> nodes.Statement:
        """The statement of a request; ``given`` has parts of the path, the query and the body."""
        statement = self.make(given)
        if isinstance(statement, nodes.Inquiry) and given.get("limit"):
            return nodes.ShowWhere(statement, limit=given["limit"])
        return statement


def read_fields(given: Mapping[str, Any], allowed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, checked.

    Raises:
        ChangefeedError: CF1204, a field that is not known or has a value it cannot have.
    """
    unknown = sorted(given.keys() - allowed.keys())
    if unknown:
        known = f"there are: {', '.join(allowed)}." if allowed else "there are none here."
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE, f'there is no field "{unknown[0]}"', hint=known
        )
    for name, value in given.items():
        schema = allowed[name]
        if schema["type"] == "integer":
            good = isinstance(value, int) and 1 <= value <= schema["maximum"]
            wanted = f"a number from 1 to {schema['maximum']}"
        elif schema["type"] == "string":
            good, wanted = isinstance(value, str), "a text"
        elif schema["items"]["type"] == "integer":
            good = isinstance(value, list) and all(
                type(each) is int and 1 <= each < 1 << 63 for each in value
            )
            wanted = "a list of numbers"
        else:
            good = isinstance(value, list) and all(isinstance(each, str) for each in value)
            wanted = "a list of names"
        if not good or isinstance(value, bool):
            raise ChangefeedError(
                Code.INVALID_OPTION_VALUE, f'field "{name}" is {wanted}, not {value!r}'
            )
    return dict(given)


def _feed(given: Mapping[str, Any]) -> nodes.FeedRef:
    return nodes.FeedRef(name=given["name"])


def _aspect(name: str) -> Maker:
    return lambda given: nodes.ShowChangefeed(_feed(given), name)


def _of_letters(kind: type[nodes.RetryDeadLetters | nodes.DiscardDeadLetters]) -> Maker:
    return lambda given: kind(_feed(given), tuple(given.get("letters") or ()))


def _tables(given: Mapping[str, Any]) -> tuple[nodes.QualifiedName, ...]:
    named = given.get("tables") or ()
    return tuple(nodes.QualifiedName(parts(name) or (name,)) for name in named)


def _rescan(given: Mapping[str, Any]) -> nodes.Statement:
    return nodes.AlterChangefeed(_feed(given), (nodes.AlterRescan(_tables(given)),))


def _skip(given: Mapping[str, Any]) -> nodes.Statement:
    return nodes.SkipTransaction(_feed(given), nodes.Literal(given.get("transaction", "")))


def _whole_or_tables(
    whole: type[nodes.PauseChangefeed | nodes.ResumeChangefeed],
    some: type[nodes.PauseTables | nodes.ResumeTables],
) -> Maker:
    def make(given: Mapping[str, Any]) -> nodes.Statement:
        if "tables" not in given:
            return whole((_feed(given),))
        if not (tables := _tables(given)):
            # A list that a program has worked out: what it means is not the whole feed.
            raise ChangefeedError(Code.INVALID_OPTION_VALUE, 'field "tables" names no table')
        return some(_feed(given), tables)

    return make


_LIMIT = {"limit": {"type": "integer", "minimum": 1, "maximum": MOST_ROWS}}
_LETTERS = {
    "letters": {
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": (1 << 63) - 1},
    }
}
_TABLES = {"tables": {"type": "array", "items": {"type": "string"}}}
_SOME_TABLES = {"tables": {**_TABLES["tables"], "minItems": 1}}

#: Every row.
RESOURCES: tuple[Resource, ...] = (
    Resource("GET", "/v1/feeds", "The feeds.", lambda _: nodes.ShowChangefeeds()),
    Resource(
        "GET",
        "/v1/feeds/{name}",
        "All about one feed.",
        lambda given: nodes.ShowChangefeed(_feed(given)),
        one=True,
    ),
    Resource(
        "GET",
        "/v1/feeds/{name}/tables",
        "State and progress of each table of a feed.",
        _aspect("tables"),
    ),
    Resource(
        "GET",
        "/v1/feeds/{name}/errors",
        "What failed, and what to do about it.",
        _aspect("errors"),
    ),
    Resource(
        "GET",
        "/v1/feeds/{name}/events",
        "The history of a feed, the newest event first.",
        _aspect("events"),
    ),
    Resource(
        "GET",
        "/v1/feeds/{name}/create",
        "The statement that makes a feed, without its secrets.",
        lambda given: nodes.ShowCreateChangefeed(_feed(given)),
        one=True,
    ),
    Resource(
        "GET",
        "/v1/feeds/{name}/dead-letters",
        "The rows of a feed that were refused, the oldest first; values for operators alone.",
        _aspect("dead_letters"),
    ),
    Resource(
        "GET",
        "/v1/feeds/{name}/jobs",
        "The jobs of Spark of a feed that run, and the last ones that ended, the newest first.",
        _aspect("jobs"),
    ),
    Resource(
        "GET",
        "/v1/feeds/{name}/lineage",
        "The source's columns behind each column of the targets of a feed.",
        _aspect("lineage"),
    ),
    Resource(
        "POST",
        "/v1/feeds/{name}/dead-letters/retry",
        "Read the rows of dead letters again, of all if none is named.",
        _of_letters(nodes.RetryDeadLetters),
        one=True,
        body=_LETTERS,
    ),
    Resource(
        "POST",
        "/v1/feeds/{name}/dead-letters/discard",
        "Remove dead letters, all if none is named; their rows are not delivered.",
        _of_letters(nodes.DiscardDeadLetters),
        one=True,
        body=_LETTERS,
    ),
    Resource(
        "POST",
        "/v1/feeds/{name}/pause",
        "Stop a feed, or tables of it; each keeps its position.",
        _whole_or_tables(nodes.PauseChangefeed, nodes.PauseTables),
        one=True,
        body=_SOME_TABLES,
    ),
    Resource(
        "POST",
        "/v1/feeds/{name}/resume",
        "Continue a feed, or tables of it, that are paused or have failed.",
        _whole_or_tables(nodes.ResumeChangefeed, nodes.ResumeTables),
        one=True,
        body=_SOME_TABLES,
    ),
    Resource(
        "POST",
        "/v1/feeds/{name}/retry",
        "Try the failed tables of a running feed, or a failed feed, again.",
        lambda given: nodes.ResumeChangefeed((_feed(given),)),
        one=True,
    ),
    Resource(
        "POST",
        "/v1/feeds/{name}/rescan",
        "Read tables of a feed again, all of them if none is named.",
        _rescan,
        body=_TABLES,
    ),
    Resource(
        "POST",
        "/v1/feeds/{name}/skip-transaction",
        "Continue after the transaction at which tables of a feed failed, which they name.",
        _skip,
        body={"transaction": {"type": "string"}},
    ),
    Resource("GET", "/v1/jobs", "Every job, finished ones too.", lambda _: nodes.ShowJobs()),
    Resource("GET", "/v1/schedules", "The schedules.", lambda _: nodes.ShowSchedules()),
    Resource(
        "POST",
        "/v1/schedules/{name}/pause",
        "Begin no more runs of a schedule.",
        lambda given: nodes.PauseSchedule((_feed(given),)),
    ),
    Resource(
        "POST",
        "/v1/schedules/{name}/resume",
        "Let a paused schedule run again.",
        lambda given: nodes.ResumeSchedule((_feed(given),)),
    ),
    Resource(
        "GET", "/v1/audit", "Who ran which statement; for admins.", lambda _: nodes.ShowAudit()
    ),
    Resource("GET", "/v1/nodes", "The nodes of the state.", lambda _: nodes.ShowNodes()),
    Resource(
        "GET",
        "/v1/sources",
        "The external connections, of sources and sinks.",
        lambda _: nodes.ShowConnections(),
    ),
    Resource(
        "GET",
        "/v1/sources/{name}/tables",
        "The tables that a feed of the source can watch.",
        lambda given: nodes.ShowTables(given["name"]),
        asks=True,
    ),
    Resource(
        "POST",
        "/v1/sources/{name}/check",
        "Try a connection as it is.",
        lambda given: nodes.CheckConnection(given["name"]),
    ),
)


def allowed(role: Role | None) -> list[str]:
    """``POST /v1/feeds/{name}/pause``: the rows that a role may use."""
    some = {"name": "f"}
    return [
        f"{row.method} {row.path}"
        for row in RESOURCES
        if role is None or role.covers(least(row.statement(some)))
    ]


#: What the paths of one feed begin with.
_OF_FEED = "/v1/feeds/{name}"


@dataclass(frozen=True, slots=True)
class FactReader:
    """What a fact is read from.

    Attributes:
        interpreter, series: of the node.
        budget: bytes that the node allows each change log; None: no limit.
        user: who asks; None for a client without a token.
    """

    interpreter: Interpreter
    series: Series
    budget: int | None
    user: User | None

    def session(self) -> dict[str, Any]:
        """Who asks, and what the console may offer."""
        user, catalog = self.user, self.interpreter.catalog
        return {
            "user": user and user.name,
            "role": user and user.role,
            "state": catalog.shown,
            "version": __version__,
            "may": allowed(Role(user.role) if user else None),
        }

    def rights(self, name: str) -> dict[str, Any]:
        """The rows of a feed that who asks may use on it: an owner more than the role allows.

        Raises:
            ChangefeedError: CF1101 no such feed.
        """
        user, catalog = self.user, self.interpreter.catalog
        role, who = (Role(user.role), user.name) if user else (None, "")
        job = catalog.job(name)
        rows = (row for row in RESOURCES if row.path.startswith(_OF_FEED))
        may = [
            f"{row.method} {row.path}"
            for row in rows
            if permits(role, who, row.statement({"name": job.name}), catalog)
        ]
        return {"may": may}

    def names(self) -> KnownNames:
        """What completion offers; users as SHOW USERS, to those who may list them."""
        known = self.interpreter.names()
        admin = self.user is None or Role(self.user.role) is Role.ADMIN
        return known if admin else replace(known, users=())


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of what is read besides the results of statements.

    Attributes:
        path, summary: as :class:`Resource` has them.
        look: reads it; given has parts of the path and the query.
        answer: JSON schema of the answer.
        query: JSON schemas of the query, each of which has to be given.
    """

    path: str
    summary: str
    look: Callable[[FactReader, Mapping[str, Any]], Any]
    answer: Mapping[str, Any]
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def read(self, asked: FactReader, given: Mapping[str, Any]) -> Any:
        """What it is now, as JSON has it.

        Raises:
            ChangefeedError: CF1204 something is not given; it cannot be read.
        """
        for name in self.query:
            if name not in given:
                raise ChangefeedError(Code.INVALID_OPTION_VALUE, f'parameter "{name}" is not given')
        found = self.look(asked, given)
        return found if isinstance(found, dict) else asdict(found)


def _object(**fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(fields), "properties": fields}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _map(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}

_OR_NULL, _FIGURE = {"type": ["string", "null"]}, {"type": ["number", "null"]}
_FIGURES = _list(_FIGURE)

#: Every row.
FACTS: tuple[Fact, ...] = (
    Fact(
        "/v1/session",
        "Who asks, what the role may do, and which node answers.",
        lambda asked, _: asked.session(),
        _object(user=_OR_NULL, role=_OR_NULL, state=_TEXT, version=_TEXT, may=_list(_TEXT)),
    ),
    Fact(
        "/v1/feeds/{name}/rights",
        "What who asks may do with the feed, by the role or as its owner.",
        lambda asked, given: asked.rights(given["name"]),
        _object(may=_list(_TEXT)),
    ),
    Fact(
        "/v1/feeds/{name}/series",
        "Throughput and lag of a feed over the last hours, as this node has seen them.",
        lambda asked, given: asked.series.of(asked.interpreter.catalog.job(given["name"]).id),
        _object(
            pace={"type": "number"},
            at=_list({"type": "number"}),
            **dict.fromkeys(FIGURES, _FIGURES),
        ),
    ),
    Fact(
        "/v1/names",
        "Names that a statement may use: connections, functions, feeds, schedules; to an admin, "
        "users.",
        lambda asked, _: asked.names(),
        _object(
            connections=_map(_TEXT),
            functions=_map(_TEXT),
            schedules=_map(_TEXT),
            feeds=_list(
                _object(
                    job_id=_NUMBER,
                    name=_TEXT,
                    status=_TEXT,
                    scheme=_TEXT,
                    options=_list(_TEXT),
                    tables=_list(_list(_TEXT)),
                )
            ),
            source={"type": ["string", "null"]},
            users=_list(_TEXT),
        ),
    ),
    Fact(
        "/v1/summary",
        "How the feeds are: how many run, how many are in trouble, the worst lag.",
        lambda asked, _: asked.interpreter.summary(),
        _object(
            **dict.fromkeys(("feeds", "active", "running", "stopped", "troubled"), _NUMBER),
            worst_lag={"type": ["number", "null"]},
            scanning=_map(_list(_NUMBER)),
            node=_FLAG,
        ),
    ),
    Fact(
        "/v1/captures",
        "The sources of feeds: what is held there, their change logs and the limits of these.",
        lambda asked, _: captures(asked.interpreter, asked.budget),
        _object(
            items=_list(
                _object(
                    source=_TEXT,
                    **dict.fromkeys(("status", "error", "holds", "complete_up_to"), _OR_NULL),
                    feeds=_list(_TEXT),
                    log_bytes=_FIGURE,
                    log_since=_OR_NULL,
                    **dict.fromkeys(("kept_seconds", "kept_bytes", "budget_bytes"), _FIGURE),
                )
            )
        ),
    ),
    Fact(
        "/v1/sources/{name}/headroom",
        "What a source keeps for its change log, asked now.",
        lambda asked, given: headroom(asked.interpreter, given["name"]),
        _object(kept=_list(_TEXT)),
    ),
    Fact(
        "/v1/slo",
        "How late the rows of each feed were, and what option slo says to that.",
        lambda asked, _: promises(asked.interpreter),
        _object(
            items=_list(
                _object(
                    feed=_TEXT,
                    slo=_OR_NULL,
                    rows=_NUMBER,
                    **dict.fromkeys(("p50_seconds", "p99_seconds"), _FIGURE),
                    **dict.fromkeys(("kept_24h", "kept_7d", "burnt_24h", "burnt_7d"), _FIGURE),
                )
            )
        ),
    ),
    Fact(
        "/v1/sources/{name}/columns",
        "The columns and partitions of one table of a source.",
        lambda asked, given: asked.interpreter.table(given["name"], parts(given["table"]) or ("",)),
        _object(
            name=_TEXT,
            columns=_list(
                _object(name=_TEXT, type=_TEXT, nullable=_FLAG, key={"type": ["integer", "null"]})
            ),
            keyless=_FLAG,
            before_image=_TEXT,
            partitions=_list(_TEXT),
        ),
        query={"table": {"type": "string", "description": "Its name, as a statement has it."}},
    ),
)
