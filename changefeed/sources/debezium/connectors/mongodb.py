"""MongoDB, by its change streams: a table is a collection with two columns.

A position is a time of the cluster, which every change has: all changes of a transaction have the
same. Debezium goes on by the resume token in its offset; a token begins with such a time.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self
from urllib.parse import quote, urlencode

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed.core.uri import Parts, split_uri
from changefeed.sources.base import Watch
from changefeed.sources.debezium.address import Address, address_of
from changefeed.sources.debezium.connectors.base import (
    PREFIX,
    Connector,
    TableDescription,
    escaped,
)
from changefeed.sources.debezium.frames import Offset
from changefeed.sources.debezium.sessions import CatalogSession

#: Options of a connection string of MongoDB that go to its driver as they are.
DRIVER_OPTIONS = frozenset(
    {
        *("appname", "authmechanism", "authmechanismproperties", "authsource", "compressors"),
        *("directconnection", "replicaset", "retryreads", "retrywrites", "ssl", "srvmaxhosts"),
        *("srvservicename", "tls", "tlsallowinvalidhostnames", "tlsinsecure", "w"),
        "zlibcompressionlevel",
    }
)
#: The first version of the wire protocol that has images of changed documents: MongoDB 6.0.
_OLDEST_WIRE = 17
#: What the user must be allowed to do in all databases (Debezium's stream is of the deployment, and
#: filtered by the server), in the cluster, and the role that has the rights.
_RIGHTS = (
    ("readAnyDatabase", ("changeStream", "collStats", "find", "listCollections"), False),
    ("clusterMonitor", ("listDatabases", "replSetGetConfig"), True),
)
_COLUMNS = (
    Column("_id", "_id", LogicalType(Kind.TEXT), False),
    Column("document", "document", LogicalType(Kind.JSON)),
)
#: The time in a resume token, in hexadecimal digits: seconds, then a number within the second.
_TOKEN = re.compile(rb"\x02_data\x00....82([0-9A-Fa-f]{8})([0-9A-Fa-f]{8})", re.DOTALL)


def position_of(seconds: int, number: int) -> Position:
    """A time of the cluster as text that sorts."""
    return f"{seconds:010d}.{number:010d}"


def position_of_token(token: str) -> Position:
    """The time in a resume token, as Debezium's offsets have it: BSON in Base64."""
    found = _TOKEN.search(base64.b64decode(token))
    if found is None:
        raise ChangefeedError(Code.UNEXPECTED_MESSAGE, "a resume token without a time")
    return position_of(int(found[1], 16), int(found[2], 16))


class MongoDB(Connector):
    """A replica set of MongoDB, or a cluster of several."""

    scheme = "mongodb"
    connector_class = "io.debezium.connector.mongodb.MongoDbConnector"
    packs = ("debezium-mongodb",)
    port = 27017
    keeps_history = False
    commit_fields = ("sec", "ord")

    def __init__(
        self, address: Address, connection_string: str, *, names_replica_set: bool
    ) -> None:
        super().__init__(address)
        self._connection_string = connection_string
        self._names_replica_set = names_replica_set

    @classmethod
    def of(cls, uri: str) -> Self:
        parts = split_uri(uri)
        if not parts.hosts or not all(host.name for host in parts.hosts) or not parts.database:
            raise ChangefeedError(
                Code.INVALID_URI,
                f"the URI of a source {cls.scheme}:// names hosts and a database",
                hint=f"write it as {cls.scheme}://user:password@host/database?authSource=admin",
            )
        options = [pair for pair in parts.parameters if pair[0].lower() in DRIVER_OPTIONS]
        others = [pair for pair in parts.parameters if pair[0].lower() not in DRIVER_OPTIONS]
        # A secondary may not have yet what a stream of another member begins behind.
        others = [pair for pair in others if pair != ("readPreference", "primary")]
        return cls(
            address_of(replace(parts, parameters=tuple(others)), cls.port),
            _connection_string(parts, options),
            # The name service may have it, else.
            names_replica_set=cls.scheme != "mongodb"
            or any(name.lower() == "replicaset" for name, _ in options),
        )

    def opening(self) -> dict[str, Any]:
        properties = {"topic.prefix": PREFIX, **self.login(), **dict(self.address.properties)}
        return {"client": "changefeed.Commands", "properties": properties}

    def login(self) -> dict[str, str]:
        timeout = str(self.address.connect_timeout * 1000)
        return {
            "mongodb.connection.string": self._connection_string,
            "mongodb.connect.timeout.ms": timeout,
            "mongodb.server.selection.timeout.ms": timeout,
            # The stream of a database ends, without a word, when the database is dropped.
            "capture.scope": "deployment",
            "filters.match.mode": "literal",
            "database.include.list": self.address.database,
            "capture.mode": "change_streams_update_full_with_pre_image",
            "cursor.max.await.time.ms": "200",
            # Documents may be large, and each of these numbers of them is in memory.
            "max.batch.size": "2048",
            "max.queue.size": "4096",
            "max.queue.size.in.bytes": str(64 << 20),
            # It takes every refusal of the server for a lost log; the stream itself is precise.
            "internal.log.position.check.enable": "false",
            "transforms": "documents",
            "transforms.documents.type": "changefeed.Documents",
        }

    def scanning(self, tables: Sequence[TableName]) -> dict[str, str]:
        # A name may have a comma in it.
        names = [escaped(f"{table.schema}.{table.name}") for table in tables]
        return {
            "snapshot.mode": "initial_only",
            "filters.match.mode": "regex",
            "database.include.list": f"^{escaped(self.address.database)}$",
            "collection.include.list": ",".join(names),
        }

    def table_of(self, source: Mapping[str, Any]) -> tuple[str, str]:
        return str(source["db"]), str(source["collection"])

    # -- positions -------------------------------------------------------------------

    def position(self, offset: Mapping[str, Any]) -> Position:
        return position_of_token(str(offset["resume_token"]))

    def scan_position(self, offset: Mapping[str, Any]) -> Position:
        if "resume_token" in offset:
            return self.position(offset)
        return position_of(int(offset["sec"]), int(offset["ord"]))

    def commit_position(self, source: Mapping[str, Any], offset: Mapping[str, Any]) -> Position:
        return position_of(int(source["sec"]), int(source["ord"]))

    def transaction_id(self, source: Mapping[str, Any]) -> int:
        # MongoDB numbers the transactions of a session only.
        return (int(source["sec"]) << 32 | int(source["ord"])) & (1 << 63) - 1

    def current(self, session: CatalogSession) -> Position:
        answer = session.command("admin", {"hello": 1})
        # A router of a sharded cluster has no log of its own.
        last = (
            answer["lastWrite"]["opTime"]["ts"]
            if "lastWrite" in answer
            else answer["operationTime"]
        )
        return position_of(last["$timestamp"]["t"], last["$timestamp"]["i"])

    def identity(self, session: CatalogSession) -> str:
        if _is_router(session.command("admin", {"hello": 1})):
            [version] = _all(session, "config", {"find": "version"})
            cluster = version["clusterId"]
        else:
            config = session.command("admin", {"replSetGetConfig": 1})["config"]
            cluster = config["settings"]["replicaSetId"]
        return f"{cluster['$oid']}/{self.address.database}"

    def begin(
        self, session: CatalogSession, memo: Mapping[str, Any]
    ) -> tuple[Position, Offset | None]:
        token = session.resume_token()
        offset = {"sec": -1, "ord": -1, "resume_token": token}
        return position_of_token(token), ({"server_id": PREFIX}, offset)

    # -- tables ----------------------------------------------------------------------

    def _collections(self, session: CatalogSession, **only: Any) -> list[dict[str, Any]]:
        command = {"listCollections": 1, "filter": {"type": "collection", **only}}
        found = _all(session, self.address.database, command)
        return [each for each in found if not each["name"].startswith("system.")]

    def tables(self, session: CatalogSession) -> list[tuple[str, str]]:
        return [(self.address.database, each["name"]) for each in self._collections(session)]

    def sizes(self, session: CatalogSession) -> Mapping[tuple[str, str], tuple[int, int]]:
        found = {}
        for schema, name in self.tables(session):
            stage: Mapping[str, Any] = {"$collStats": {"storageStats": {}}}
            parts = _all(session, schema, {"aggregate": name, "pipeline": [stage], "cursor": {}})
            stats = [part["storageStats"] for part in parts]  # one of each shard
            sums = (sum(int(each[what]) for each in stats) for what in ("count", "size"))
            found[schema, name] = (next(sums), next(sums))
        return found

    def described(self, session: CatalogSession, schema: str, name: str) -> TableDescription | None:
        if schema != self.address.database:
            return None
        for found in self._collections(session, name=name):
            images = found.get("options", {}).get("changeStreamPreAndPostImages", {})
            image = BeforeImage.FULL if images.get("enabled") else BeforeImage.KEY
            return TableDescription(_COLUMNS, ("_id",), image)
        return None

    def default_schema(self, session: CatalogSession) -> str:
        return self.address.database

    # -- checks ----------------------------------------------------------------------

    def server_problems(self, session: CatalogSession) -> list[ChangefeedError]:
        answer = session.command("admin", {"hello": 1})
        if answer.get("maxWireVersion", 0) < _OLDEST_WIRE:
            return [
                ChangefeedError(
                    Code.SOURCE_NOT_SET_UP,
                    "the server is older than MongoDB 6.0",
                    hint="upgrade it: Debezium needs the change streams of MongoDB 6.0.",
                )
            ]
        if not answer.get("setName") and not _is_router(answer):
            return [
                ChangefeedError(
                    Code.SOURCE_NOT_SET_UP,
                    "the server is not a member of a replica set, so it has no change streams",
                    hint="set replication.replSetName in its configuration, restart it, then in"
                    " mongosh: rs.initiate()",
                )
            ]
        found = self._rights(session)
        if answer.get("setName") and not self._names_replica_set:
            found.append(
                ChangefeedError(
                    Code.SOURCE_NOT_SET_UP,
                    "the URI of the connection does not name the replica set",
                    hint=f"add the parameter replicaSet={answer['setName']} to it.",
                )
            )
        return found

    def _rights(self, session: CatalogSession) -> list[ChangefeedError]:
        status = session.command("admin", {"connectionStatus": 1, "showPrivileges": True})
        login = status["authInfo"]
        if not login["authenticatedUsers"]:
            return []  # no access control
        user = login["authenticatedUsers"][0]
        privileges = login["authenticatedUserPrivileges"]
        found = [
            (role, _missing(privileges, actions, cluster=cluster))
            for role, actions, cluster in _RIGHTS
        ]
        missing = [action for _, actions in found for action in actions]
        if not missing:
            return []
        roles = [f'{{role: "{role}", db: "admin"}}' for role, actions in found if actions]
        return [
            ChangefeedError(
                Code.SOURCE_PERMISSION_MISSING,
                f"user {user['user']} may not {', '.join(missing)}",
                hint=f"in mongosh: db.getSiblingDB({_js(user['db'])})"
                f".grantRolesToUser({_js(user['user'])}, [{', '.join(roles)}])",
            )
        ]

    def table_problems(
        self, session: CatalogSession, table: TableSchema, watch: Watch
    ) -> list[ChangefeedError]:
        if table.before_image is BeforeImage.FULL or not watch.diff:
            return []
        name = table.table
        return [
            ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"the database does not keep old documents of {name}",
                hint=f"in mongosh: db.getSiblingDB({_js(name.schema)}).runCommand({{collMod:"
                f" {_js(name.name)}, changeStreamPreAndPostImages: {{enabled: true}}}})",
            )
        ]


class MongoDBByDNS(MongoDB):
    """The same, where the name service knows the hosts."""

    scheme = "mongodb+srv"


def _connection_string(parts: Parts, options: Sequence[tuple[str, str]]) -> str:
    user = "" if parts.user is None else quote(parts.user, safe="")
    if parts.password is not None:
        user += ":" + quote(parts.password, safe="")
    hosts = ",".join(map(str, parts.hosts))
    database = quote(parts.database, safe="")
    at = "@" if user else ""
    query = "?" + urlencode(options) if options else ""
    return f"{parts.scheme}://{user}{at}{hosts}/{database}{query}"


def _is_router(answer: Mapping[str, Any]) -> bool:
    return answer.get("msg") == "isdbgrid"


def _all(
    session: CatalogSession, database: str, command: Mapping[str, Any]
) -> list[dict[str, Any]]:
    cursor = session.command(database, command)["cursor"]
    found: list[dict[str, Any]] = cursor["firstBatch"]
    while cursor["id"]:
        collection = cursor["ns"].partition(".")[2]
        more = {"getMore": {"$numberLong": str(cursor["id"])}, "collection": collection}
        cursor = session.command(database, more)["cursor"]
        found += cursor["nextBatch"]
    return found


def _missing(
    privileges: Iterable[Mapping[str, Any]], actions: Sequence[str], *, cluster: bool
) -> list[str]:
    """The actions that none of the privileges allows, of the cluster or in all databases."""
    allowed: set[str] = set()
    for privilege in privileges:
        on = privilege["resource"]
        whole = on.get("db") == "" and on.get("collection") == ""
        if on.get("anyResource") or (on.get("cluster") if cluster else whole):
            allowed.update(privilege["actions"])
    return [action for action in actions if not {action, "anyAction"} & allowed]


def _js(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
