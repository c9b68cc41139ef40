"""Large transactions on disk until they commit.

The server sends a transaction above its ``logical_decoding_work_mem`` in pieces while it runs,
between other transactions, not knowing whether it will commit (protocol version 2). The pieces
are kept as they came, a file for each transaction, and decoded in bounded chunks when the
commit arrives. An abort of a subtransaction is remembered and its rows are left out then.

Nothing here outlives the connection: after a reconnect the server sends such a transaction
again from its beginning.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from changefeed.core.errors import ChangefeedError
from changefeed.sources.postgres.pgoutput import Inbox


class Spool:
    """Files of transactions in progress, under a folder that is ours alone."""

    def __init__(self, folder: Path, chunk: int = 8 << 20) -> None:
        """``chunk``: bytes that are decoded at once at commit. The folder is emptied."""
        self._folder = folder
        self._chunk = chunk
        self._aborted: dict[int, set[int]] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def append(self, xid: int, frames: memoryview) -> None:
        """Keep a piece of a transaction.

        Raises:
            ChangefeedError: CF3003 there is no room.
        """
        try:
            with self._path(xid).open("ab") as file:
                file.write(frames)
        except OSError as error:
            raise ChangefeedError(
                "CF3003", f"cannot keep a large transaction on disk: {error.strerror}"
            ) from error

    def abort(self, xid: int, subtransaction: int) -> None:
        """Forget a transaction, or one part of it that was rolled back."""
        if xid == subtransaction:
            self.discard(xid)
        else:
            self._aborted.setdefault(xid, set()).add(subtransaction)

    def aborted(self, xid: int) -> set[int]:
        """The rolled-back parts of a transaction."""
        return self._aborted.get(xid, set())

    def replay(self, xid: int) -> Iterator[Inbox]:
        """The transaction in scanned pieces; each is good until the next is asked for."""
        path = self._path(xid)
        if not path.exists():
            return
        inbox = Inbox(self._chunk)
        with path.open("rb", buffering=0) as file:
            while inbox.fill(lambda view: file.readinto(view) or 0):
                inbox.scan()
                if inbox.full:
                    yield inbox
                    inbox.drop(inbox.cut(everything=True))
        yield inbox

    def discard(self, xid: int) -> None:
        """Forget a transaction."""
        self._aborted.pop(xid, None)
        self._path(xid).unlink(missing_ok=True)

    def bytes(self) -> int:
        """How much is on disk."""
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def _path(self, xid: int) -> Path:
        return self._folder / f"{xid}.frames"
