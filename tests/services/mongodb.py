"""An emulator of MongoDB for tests: no server of it can be had.

It speaks the wire protocol as far as Debezium's connector and the source need it, and has what the
tests are about: collections, transactions, a log, and change streams over it. It follows the
documentation of MongoDB 7.0; that it does what a server does is not known.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import itertools
import re
import secrets
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import bson
from bson import Binary, Int64, ObjectId, Timestamp
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions

Document = dict[str, Any]

_CODEC: CodecOptions[Document] = CodecOptions(
    tz_aware=True, uuid_representation=UuidRepresentation.STANDARD
)
_MESSAGE, _QUERY, _REPLY = 2013, 2004, 1
#: Documents of one answer at most.
_BATCH = 1000
#: Commands before a login.
_FREE = ("hello", "ismaster", "saslstart", "saslcontinue")


def key_of(value: object) -> bytes:
    """A document's ``_id`` as something that can be compared."""
    return bson.encode({"": value})


@dataclass(frozen=True, slots=True)
class Write:
    """What a transaction does to a document; ``document`` is None of a delete."""

    collection: str
    id: object
    document: Document | None


@dataclass(slots=True)
class _Collection:
    documents: dict[bytes, Document] = field(default_factory=dict)
    images: bool = False


@dataclass(frozen=True, slots=True)
class _Event:
    """A change in the log. ``place``: its time, and its number within that time."""

    place: tuple[int, int, int]
    database: str
    write: Write
    kind: str
    before: Document | None
    wall: datetime
    session: Document | None


class CommandError(Exception):
    """What a command is refused with."""

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(text)
        self.answer = {"ok": 0.0, "errmsg": text, "code": code, "codeName": name}


class Login:
    """A login by SCRAM-SHA-256."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._said: list[str] = []
        self._salted = b""
        self.done = False

    def start(self, command: Document) -> Document:
        """The user's name, answered by the salt of the password."""
        bare = bytes(command["payload"]).decode().removeprefix("n,,")
        fields = dict(part.split("=", 1) for part in bare.split(","))
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        salt = secrets.token_bytes(16)
        password = self._users.get(user, secrets.token_hex(8)).encode()
        self._salted = hashlib.pbkdf2_hmac("sha256", password, salt, 4096)
        nonce = fields["r"] + secrets.token_hex(8)
        first = f"r={nonce},s={base64.b64encode(salt).decode()},i=4096"
        self._said = [bare, first]
        return {"conversationId": 1, "done": False, "payload": first.encode()}

    def finish(self, command: Document) -> Document:
        """The user's proof, answered by the server's."""
        text, _, proof = bytes(command["payload"]).decode().partition(",p=")
        told = ",".join([*self._said, text]).encode()
        client = self._signed(self._salted, b"Client Key")
        signature = self._signed(hashlib.sha256(client).digest(), told)
        wanted = bytes(a ^ b for a, b in zip(client, signature, strict=True))
        if base64.b64decode(proof) != wanted:
            raise CommandError(18, "AuthenticationFailed", "Authentication failed.")
        self.done = True
        mine = self._signed(self._signed(self._salted, b"Server Key"), told)
        payload = b"v=" + base64.b64encode(mine)
        return {"conversationId": 1, "done": True, "payload": payload}

    @staticmethod
    def _signed(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, "sha256")


class MongoEmulator:
    """A replica set of one member, as long as the block that it is entered by."""

    def __init__(self, users: Mapping[str, str] | None = None) -> None:
        """``users``: names and passwords; None: everybody may do anything."""
        self._users = users
        self.changed = threading.Condition(threading.RLock())
        #: What commands are answered with instead, by name.
        self.overrides: dict[str, Document | CommandError] = {}
        self._databases: dict[str, dict[str, _Collection]] = {}
        self._log: list[_Event] = []
        #: Nothing before is in the log any more.
        self._oldest = (0, 0)
        self._time = (int(time.time()), 1)
        self._set_id = ObjectId()
        self._numbers = itertools.count(1)
        self._cursors: dict[int, Callable[[Document], Document]] = {}
        self._server = _Server(("127.0.0.1", 0), _Connection)
        self._server.emulator = self
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> MongoEmulator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def uri(self, database: str) -> str:
        """The URI of a source."""
        return f"mongodb://127.0.0.1:{self.port}/{database}?replicaSet=rs0"

    # -- for users -------------------------------------------------------------------

    def create(self, database: str, name: str, *, images: bool = False) -> None:
        """Make a collection."""
        with self.changed:
            self._databases.setdefault(database, {})[name] = _Collection(images=images)

    def keep_images(self, database: str, name: str) -> None:
        """Keep old documents from here on: ``changeStreamPreAndPostImages``."""
        with self.changed:
            self._databases[database][name].images = True

    def rename(self, database: str, old: str, new: str) -> None:
        """Give a collection another name."""
        with self.changed:
            self._databases[database][new] = self._databases[database].pop(old)

    def drop(self, database: str) -> None:
        """Remove a database with all collections; of a deployment's stream that is no end."""
        with self.changed:
            self._time = self._next_time()
            del self._databases[database]
            self.changed.notify_all()

    def document(self, database: str, name: str, key: object) -> Document | None:
        """A document of a collection."""
        with self.changed:
            return self._databases[database][name].documents.get(key_of(key))

    def documents(self, database: str, name: str) -> dict[bytes, Document]:
        """All documents of a collection."""
        with self.changed:
            return dict(self._databases[database][name].documents)

    def commit(self, database: str, writes: Sequence[Write]) -> None:
        """Do these writes at once; several are a transaction."""
        if not writes:
            return
        with self.changed:
            self._time = self._next_time()
            wall = datetime.now(UTC)
            session = None
            if len(writes) > 1:
                lsid = {"id": uuid4(), "uid": Binary(bytes(32))}
                session = {"lsid": lsid, "txnNumber": Int64(next(self._numbers))}
            for number, write in enumerate(writes, 1):
                known = self._databases.setdefault(database, {})
                collection = known.setdefault(write.collection, _Collection())
                key = key_of(write.id)
                before = collection.documents.get(key)
                if write.document is None:
                    if before is None:
                        continue
                    kind = "delete"
                    del collection.documents[key]
                else:
                    kind = "insert" if before is None else "update"
                    collection.documents[key] = write.document
                image = before if collection.images else None
                place = (*self._time, number)
                self._log.append(_Event(place, database, write, kind, image, wall, session))
            self.changed.notify_all()

    def insert(self, database: str, collection: str, *documents: Document) -> None:
        """Insert documents, each by itself."""
        for document in documents:
            self.commit(database, [Write(collection, document["_id"], document)])

    def forget(self) -> None:
        """Remove the whole log, as a server does with the oldest part when it is full."""
        with self.changed:
            self._time = self._next_time()
            self._log.clear()
            self._oldest = self._time

    def _next_time(self) -> tuple[int, int]:
        now, (seconds, number) = int(time.time()), self._time
        return (now, 1) if now > seconds else (seconds, number + 1)

    # -- commands --------------------------------------------------------------------

    def answer(self, command: Document, login: Login) -> Document:
        """The answer to a command of a connection that has logged in, or not."""
        name = next(iter(command)).lower()
        override = self.overrides.get(name)
        known: Mapping[str, Callable[[Document], Document]] = {
            "saslstart": login.start,
            "saslcontinue": login.finish,
            "hello": self._hello,
            "ismaster": self._hello,
            "ping": lambda _: {},
            "buildinfo": lambda _: {"version": "7.0.0", "versionArray": [7, 0, 0, 0]},
            "endsessions": lambda _: {},
            "listdatabases": self._list_databases,
            "listcollections": self._list_collections,
            "find": self._find,
            "aggregate": self._aggregate,
            "getmore": self._get_more,
            "killcursors": self._kill_cursors,
            "replsetgetconfig": lambda _: {
                "config": {"_id": "rs0", "settings": {"replicaSetId": self._set_id}}
            },
            "connectionstatus": lambda _: {
                "authInfo": {
                    "authenticatedUsers": [],
                    "authenticatedUserRoles": [],
                    "authenticatedUserPrivileges": [],
                }
            },
        }
        try:
            if isinstance(override, CommandError):
                raise override
            if name not in known:
                raise CommandError(59, "CommandNotFound", f"no such command: '{name}'")
            if name not in _FREE and self._users is not None and not login.done:
                raise CommandError(13, "Unauthorized", f"command {name} requires authentication")
            found = {**known[name](command), **(override or {})}
        except CommandError as error:
            return error.answer
        with self.changed:
            return {**found, "ok": 1.0, "operationTime": Timestamp(*self._time)}

    def login(self) -> Login:
        """The login of a new connection."""
        return Login(self._users or {})

    def _hello(self, command: Document) -> Document:
        mechanisms = {"saslSupportedMechs": ["SCRAM-SHA-256"]}
        here = f"127.0.0.1:{self.port}"
        with self.changed:
            at = {"ts": Timestamp(*self._time), "t": Int64(1)}
        now = datetime.now(UTC)
        return {
            **(mechanisms if "saslSupportedMechs" in command else {}),
            "helloOk": True,
            "ismaster": True,
            "isWritablePrimary": True,
            "secondary": False,
            "setName": "rs0",
            "setVersion": 1,
            "hosts": [here],
            "primary": here,
            "me": here,
            "lastWrite": {
                "opTime": at,
                "lastWriteDate": now,
                "majorityOpTime": at,
                "majorityWriteDate": now,
            },
            "maxBsonObjectSize": 16 << 20,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
            "localTime": now,
            "logicalSessionTimeoutMinutes": 30,
            "connectionId": 1,
            "minWireVersion": 0,
            "maxWireVersion": 21,
            "readOnly": False,
        }

    def _list_databases(self, command: Document) -> Document:
        with self.changed:
            names = ["admin", "config", "local", *self._databases]
        databases = [{"name": name, "sizeOnDisk": Int64(0), "empty": False} for name in names]
        return {"databases": databases, "totalSize": Int64(0)}

    def _list_collections(self, command: Document) -> Document:
        wanted = command.get("filter", {})
        with self.changed:
            known = self._databases.get(command["$db"], {})
            found = [
                {
                    "name": name,
                    "type": "collection",
                    "options": {"changeStreamPreAndPostImages": {"enabled": True}}
                    if collection.images
                    else {},
                    "info": {"readOnly": False},
                }
                for name, collection in known.items()
                if wanted.get("name", name) == name
            ]
        return self._cursor(command, "$cmd.listCollections", iter(found))

    def _find(self, command: Document) -> Document:
        name = command["find"]
        with self.changed:
            known = self._databases.get(command["$db"], {})
            keys = list(known[name].documents) if name in known else []

        def each() -> Iterator[Document]:
            # As a server does: what is written meanwhile may be seen or not.
            for key in keys:
                with self.changed:
                    found = self._databases[command["$db"]][name].documents.get(key)
                if found is not None:
                    yield found

        return self._cursor(command, name, each(), command.get("batchSize", 101))

    def _cursor(
        self, command: Document, name: str, rows: Iterator[Document], size: int = _BATCH
    ) -> Document:
        space = f"{command['$db']}.{name}"

        def take(count: int) -> list[Document]:
            return list(itertools.islice(rows, count or _BATCH))

        first = take(size)
        if not first:
            return {"cursor": {"id": Int64(0), "ns": space, "firstBatch": []}}
        number = next(self._numbers)

        def more(asked: Document) -> Document:
            found = take(asked.get("batchSize", _BATCH))
            if not found:
                del self._cursors[number]
            left = Int64(number if found else 0)
            return {"cursor": {"id": left, "ns": space, "nextBatch": found}}

        self._cursors[number] = more
        return {"cursor": {"id": Int64(number), "ns": space, "firstBatch": first}}

    def _get_more(self, command: Document) -> Document:
        more = self._cursors.get(command["getMore"])
        if more is None:
            raise CommandError(43, "CursorNotFound", f"cursor id {command['getMore']} not found")
        return more(command)

    def _kill_cursors(self, command: Document) -> Document:
        for number in command["cursors"]:
            self._cursors.pop(number, None)
        return {"cursorsKilled": command["cursors"], "cursorsNotFound": [], "cursorsAlive": []}

    def _aggregate(self, command: Document) -> Document:
        first = command["pipeline"][0]
        if "$collStats" in first:
            documents = self.documents(command["$db"], command["aggregate"])
            size = sum(len(bson.encode(each)) for each in documents.values())
            stats = {"storageStats": {"count": len(documents), "size": size}}
            return self._cursor(command, command["aggregate"], iter([stats]))
        return self._change_stream(command, first["$changeStream"])

    def _change_stream(self, command: Document, options: Document) -> Document:
        stages = [stage["$match"] for stage in command["pipeline"] if "$match" in stage]
        with self.changed:
            start = (*self._time, 1 << 30)
        if "resumeAfter" in options:
            start = _place(options["resumeAfter"]["_data"])
        elif "startAtOperationTime" in options:
            at = options["startAtOperationTime"]
            start = (at.time, at.inc, 0)
        stream = _ChangeStream(self, stages, options, start)
        number = next(self._numbers)
        space = f"{command['$db']}.$cmd.aggregate"

        def more(asked: Document) -> Document:
            found = stream.take(asked.get("maxTimeMS", 1000) / 1000)
            token = {"postBatchResumeToken": {"_data": _token(stream.at)}}
            return {"cursor": {"id": Int64(number), "ns": space, "nextBatch": found, **token}}

        stream.check()
        self._cursors[number] = more
        token = {"postBatchResumeToken": {"_data": _token(stream.at)}}
        return {"cursor": {"id": Int64(number), "ns": space, "firstBatch": [], **token}}

    def log_after(self, place: tuple[int, int, int]) -> tuple[list[_Event], tuple[int, int]]:
        """The changes behind a place, and the time of the newest entry of the log.

        Raises:
            CommandError: 286, the log has not all of them.
        """
        if place[:2] < self._oldest:
            raise CommandError(
                286,
                "ChangeStreamHistoryLost",
                "Resume of change stream was not possible, as the resume point may no longer be in"
                " the oplog.",
            )
        found: list[_Event] = []
        for event in reversed(self._log):
            if event.place <= place:
                break
            found.append(event)
        return found[::-1], self._time

    def look_up(self, event: _Event) -> Document | None:
        """The document of a change as it is now."""
        known = self._databases.get(event.database, {}).get(event.write.collection)
        return None if known is None else known.documents.get(key_of(event.write.id))


class _ChangeStream:
    """One cursor over the log. ``at``: the place up to which everything was given out."""

    def __init__(
        self,
        emulator: MongoEmulator,
        wanted: Sequence[Document],
        options: Document,
        start: tuple[int, int, int],
    ) -> None:
        self._emulator = emulator
        self._wanted = wanted
        self._options = options
        self.at = start
        self._waiting: list[_Event] = []
        self._read = start

    def check(self) -> None:
        """The log has what is to be read, or CommandError."""
        with self._emulator.changed:
            self._emulator.log_after(self.at)

    def take(self, seconds: float) -> list[Document]:
        """The next changes; none when none came in time."""
        emulator = self._emulator
        with emulator.changed:
            emulator.changed.wait_for(self._look, seconds)
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            self.at = batch[-1].place if batch and self._waiting else self._read
            return [self._document(event) for event in batch]

    def _look(self) -> bool:
        found, newest = self._emulator.log_after(self._read)
        self._waiting += [
            event for event in found if all(_matches(event, wanted) for wanted in self._wanted)
        ]
        last = found[-1].place if found else self._read
        self._read = max(last, (*newest, 0))
        return bool(self._waiting)

    def _document(self, event: _Event) -> Document:
        write = event.write
        seconds, number, _ = event.place
        found: Document = {
            "_id": {"_data": _token(event.place)},
            "operationType": event.kind,
            "clusterTime": Timestamp(seconds, number),
            "wallTime": event.wall,
            "ns": {"db": event.database, "coll": write.collection},
            "documentKey": {"_id": write.id},
            **(event.session or {}),
        }
        if event.kind == "insert":
            found["fullDocument"] = write.document
        elif event.kind == "update":
            found["updateDescription"] = {
                "updatedFields": {},
                "removedFields": [],
                "truncatedArrays": [],
            }
            mode = self._options.get("fullDocument", "default")
            if mode == "updateLookup":
                found["fullDocument"] = self._emulator.look_up(event)
            elif mode == "whenAvailable":
                kept = event.before is not None
                found["fullDocument"] = write.document if kept else None
        if "fullDocumentBeforeChange" in self._options and event.kind != "insert":
            found["fullDocumentBeforeChange"] = event.before
        return found


def _matches(event: _Event, wanted: Document) -> bool:
    """Whether a change is what a stage asks for; the names are those of Debezium's stages."""
    database, collection = event.database, event.write.collection
    fields: Document = {
        "ns.db": database,
        "event.ns.db": database,
        "ns": {"db": database, "coll": collection},
        "namespace": f"{database}.{collection}",
        "operationType": event.kind,
        "event.operationType": event.kind,
    }
    for name, condition in wanted.items():
        if name in ("$and", "$or"):
            parts = [_matches(event, part) for part in condition]
            holds = all(parts) if name == "$and" else any(parts)
        elif isinstance(condition, bson.Regex):
            holds = re.search(condition.pattern, fields[name], condition.flags) is not None
        else:
            holds = fields[name] in condition["$in"]
        if not holds:
            return False
    return True


def _token(place: tuple[int, int, int]) -> str:
    return "82{:08X}{:08X}{:08X}".format(*place)


def _place(token: str) -> tuple[int, int, int]:
    seconds, number, inside = (int(token[at : at + 8], 16) for at in (2, 10, 18))
    return seconds, number, inside


# ------------------------------------------------------------------------------------ wire


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    emulator: MongoEmulator


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        login = self.server.emulator.login()
        with contextlib.suppress(ConnectionError):
            for request, kind, body in self._requests():
                command = _of_query(body) if kind == _QUERY else _of_message(body)
                answer = bson.encode(
                    self.server.emulator.answer(command, login), codec_options=_CODEC
                )
                if kind == _QUERY:
                    self._send(request, _REPLY, struct.pack("<iqii", 8, 0, 0, 1) + answer)
                else:
                    self._send(request, _MESSAGE, struct.pack("<iB", 0, 0) + answer)

    def _requests(self) -> Iterator[tuple[int, int, bytes]]:
        while head := self._receive(16):
            length, request, _, kind = struct.unpack("<iiii", head)
            yield request, kind, self._receive(length - 16)

    def _receive(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self.request.recv(count - len(found))
            if not more:
                return b""
            found += more
        return found

    def _send(self, request: int, kind: int, body: bytes) -> None:
        self.request.sendall(struct.pack("<iiii", len(body) + 16, 0, request, kind) + body)


def _of_query(body: bytes) -> Document:
    start = body.index(b"\0", 4) + 1 + 8
    return bson.decode(body[start:], codec_options=_CODEC)


def _of_message(body: bytes) -> Document:
    """The command: a document of kind 0, and arrays of documents beside it."""
    command: Document = {}
    at, end = 4, len(body)
    while at < end:
        kind = body[at]
        (length,) = struct.unpack_from("<i", body, at + 1)
        part = body[at + 1 : at + 1 + length]
        if kind == 0:
            command = {**bson.decode(part, codec_options=_CODEC), **command}
        else:
            name, _, rest = part[4:].partition(b"\0")
            command[name.decode()] = bson.decode_all(rest, codec_options=_CODEC)
        at += 1 + length
    return command
