"""Is the binlog still the one that was read?

A server that was restored, or whose binlog was reset, begins to number its transactions again. Once
it has passed the number that was read last, it would go on from there as if nothing had happened.
So a transaction is remembered with the moment in which it was made, the *witness*. A stream begins
before it, and compares.

A reset is not announced to readers: they wait at the end of a file that is gone. So an idle stream
asks where the server's log ends.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from changefeed.core.durable import read_durable, write_at
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.proofs import AlteredBytes, sealed
from changefeed.sources.mysql.gtid import GtidSet, MariaGtid, file_position
from changefeed.sources.mysql.position import BinlogPosition, GtidPosition

#: Files in the folder that lives as long as the change log.
_FILES = ("witness-0", "witness-1")
#: Bytes of a witness there: what the file held before is overwritten.
_RECORD = 480
#: Asked so often in a row, an idle stream was behind the server's log: it waits for nothing.
_PATIENCE = 5

_logger = logging.getLogger(__name__)

Ask = Callable[[str], list[tuple[Any, ...]]]


class Witness(NamedTuple):
    """A transaction that was read.

    Attributes:
        server: the one that it was read from.
        origin: the UUID of the server that made it, or its domain of MariaDB.
        number: in that order.
        moment: when it was made, as its log says: microseconds, or seconds of MariaDB.
        before: server and number of the transaction before it in its domain of MariaDB.
    """

    server: str
    origin: str
    number: int
    moment: int
    before: tuple[int, int] | None = None


class Continuity:
    """Knows the log again by a witness. One stream, one thread.

    Two files have the last transactions of two flushes, in turn: of the later one the log may know
    nothing after a crash.
    """

    def __init__(self, folder: Path, server: str) -> None:
        """``server``: what distinguishes the present server from others."""
        self._folder = folder
        self._server = server
        self._turn, self._known = self._load()
        self._files: dict[str, int] = {}
        self._last: Witness | None = None
        #: The one before it.
        self._ended: Witness | None = None
        self._saved: Witness | None = None
        #: What was remembered, comes again, and did not come yet.
        self._expected: Witness | None = None
        #: The stream begins before the witness, and nothing came.
        self.unmet = False

    def _load(self) -> tuple[int, list[Witness]]:
        """The number of the next turn, and the witnesses, the later one first."""
        found = []
        for name in _FILES:
            try:
                text = read_durable(self._folder / name)
            except FileNotFoundError:
                continue
            except (OSError, AlteredBytes) as error:
                # A crash of the machine may have torn it: there is the other one.
                _logger.warning("%s is not used: %s", self._folder / name, error)
                continue
            turn, server, origin, number, moment, before = json.loads(text)
            before = None if before is None else (int(before[0]), int(before[1]))
            found.append((int(turn), Witness(server, origin, number, moment, before)))
        found.sort(reverse=True, key=lambda pair: pair[0])
        return found[0][0] + 1 if found else 0, [witness for _, witness in found]

    def begin(self, known: GtidSet | MariaGtid) -> GtidSet | MariaGtid:
        """Where to begin, so that a witness comes again, if one is among the ``known``."""
        for witness in self._known:
            earlier = self._before(witness, known)
            if earlier is not None:
                self._expected, self.unmet = witness, True
                return earlier
        return known

    def _before(self, witness: Witness, known: GtidSet | MariaGtid) -> GtidSet | MariaGtid | None:
        if isinstance(known, GtidSet):
            made_by = uuid.UUID(witness.origin).bytes
            there = (made_by, witness.number) in known
            return known.without(made_by, witness.number) if there else None
        domain = int(witness.origin)
        # Whether a replica gives a transaction the same second is not known.
        here = witness.server == self._server and known.covers(domain, witness.number)
        return known.back_to(domain, *witness.before) if here and witness.before else None

    def give_up(self) -> None:
        """The server has purged the witness: what comes is taken as it is."""
        self._known, self._expected, self.unmet = [], None, False

    def met(self, origin: str, number: int, moment: int, before: tuple[int, int] | None) -> None:
        """A transaction begins, which may be the witness. In a domain of MariaDB, ``before`` is
        the last one that was read.

        Raises:
            ChangefeedError: CF2103 it has the witness's number and is another, or its domain has
                none of that number.
        """
        self.unmet = False
        expected = self._expected
        if expected is not None and origin == expected.origin:
            if number == expected.number:
                if moment != expected.moment:
                    raise _another(f"transaction {origin}:{number} is not the one that was read")
                self._expected = None
            elif expected.before is not None and number > expected.number:
                raise _another(f"transaction {origin}:{expected.number} is not there any more")
        if before is None or number > before[1]:
            self._ended = self._last
            self._last = Witness(self._server, origin, number, moment, before)

    def save(self, *, idle: bool) -> None:
        """Remember the last transaction that has ended (all have where the stream is ``idle``),
        before a flush with it is out. It has to outlive this process, not the machine.

        Raises:
            ChangefeedError: CF3004 the file cannot be written.
        """
        last = self._last if idle else self._ended
        if last is None or last == self._saved:
            return
        record = [self._turn, last.server, last.origin, last.number, last.moment, last.before]
        name = _FILES[self._turn % len(_FILES)]
        path, text = self._folder / name, sealed(json.dumps(record).ljust(_RECORD), name)
        try:
            if name not in self._files:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._files[name] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            write_at(self._files[name], text.encode(), 0)
        except OSError as error:
            raise ChangefeedError(
                Code.LOG_NOT_WRITABLE, f"cannot write {path}: {error.strerror}"
            ) from error
        self._turn += 1
        self._saved = last

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


class EndOfLog:
    """Compares where the server's log ends with where an idle stream stands."""

    def __init__(self, ask: Ask, end_query: str) -> None:
        """``end_query`` returns the present binlog file and its length."""
        self._ask = ask
        self._end_query = end_query
        self._behind = 0

    def reached(self, read_upto: BinlogPosition) -> bool:
        """Whether everything that the server has was read; asked only while nothing comes.

        Raises:
            ChangefeedError: CF2103 the server's log ends before what was read, CF2101 the server
                does not send what it has.
        """
        if not isinstance(read_upto, GtidPosition):
            return self._file_has_no_more(read_upto)
        known = read_upto.gtids
        all_read = (
            self._has_no_more(known)
            if isinstance(known, GtidSet)
            else self._maria_has_no_more(known)
        )
        self._behind = 0 if all_read else self._behind + 1
        if self._behind > _PATIENCE:
            raise ChangefeedError(
                Code.STREAM_BROKE,
                "the MySQL server does not send the transactions that its binlog has",
            )
        return all_read

    def _file_has_no_more(self, read_upto: BinlogPosition) -> bool:
        """A file that was read is followed by its own name, so nothing else can go wrong."""
        [(file, offset, *_)] = self._ask(self._end_query)
        return file_position(str(file), int(offset)) <= read_upto.position

    def _has_no_more(self, known: GtidSet) -> bool:
        [(contained, read)] = self._ask(
            f"SELECT GTID_SUBSET('{known.text()}', @@GLOBAL.gtid_executed), GTID_SUBSET("
            f"GTID_SUBTRACT(@@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged), '{known.text()}')"
        )
        if not int(contained):
            raise _another("its log was reset, or the server was restored")
        return bool(int(read))

    def _maria_has_no_more(self, known: MariaGtid) -> bool:
        [(text,)] = self._ask("SELECT @@GLOBAL.gtid_binlog_pos")
        present = MariaGtid.parse(str(text or ""))
        ahead = known.ahead_of(present)
        if ahead:
            raise _another(f"{ahead} was read, and its log ends at {present.text() or 'its begin'}")
        return present.ahead_of(known) == ""


def _another(detail: str) -> ChangefeedError:
    return ChangefeedError(
        Code.SOURCE_LOG_REPLACED,
        "the binlog of the MySQL server is not the one that was read",
        detail=detail,
    )
