"""Scanned messages of an inbox, in their order -> calls of the :class:`.assemble.Assembler`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush, Frontier
from changefeed.sources.postgres import pgoutput
from changefeed.sources.postgres.assemble import Assembler, OpenTransaction, RowMessages
from changefeed.sources.postgres.columns import Block
from changefeed.sources.postgres.pgoutput import Cut, Inbox, StreamMark
from changefeed.sources.postgres.replay import has_rows, replay


def take(assembler: Assembler, inbox: Inbox, cut: Cut) -> Iterator[Flush]:
    """Decode what lies before ``cut``; the caller drops it from the inbox afterwards."""
    if cut.place:
        yield from _Pass(assembler, inbox, cut).run()


class _Pass:
    """One pass over the marks of an inbox.

    A transaction is decoded as a whole: one that goes on behind the inbox, or that a TRUNCATE or
    a table's other shape parts, is put into the spool and read from there when it commits.
    """

    def __init__(self, assembler: Assembler, inbox: Inbox, cut: Cut) -> None:
        self.to = assembler
        self.inbox = inbox
        self.cut = cut
        self.block = Block(inbox.bytes())
        self.from_row = 0
        self.transactions: list[OpenTransaction] = []
        self.first_rows: list[int] = []
        #: From here on the bytes belong to the transaction that goes into the spool.
        self.region = 0
        #: Behind the Begin of the open transaction.
        self.begun = 0

    def run(self) -> Iterator[Flush]:
        to = self.to
        if to.open is not None and not to.spooling:
            self._enter(to.open, 0)
        for mark in self.inbox.marks[: self.cut.marks]:
            if mark.tag == pgoutput.STREAM_COMMIT:
                self._decode(mark.rows)
                yield from self._stream_commit(mark)
            elif mark.tag == pgoutput.COMMIT and to.spooling:
                yield from self._kept_commit(mark)
            else:
                action = _ACTIONS.get(mark.tag)
                if action is None:
                    raise ChangefeedError(
                        Code.UNEXPECTED_MESSAGE, f"unknown message {chr(mark.tag)!r}"
                    )
                action(self, mark)
        yield from self._finish()

    def _finish(self) -> Iterator[Flush]:
        """The inbox ends, perhaps in the middle of a transaction because it is full."""
        to = self.to
        if to.streaming is not None:
            self._spool(self.cut.place)
        transaction = to.open
        if transaction is None or transaction.skip:
            self._decode(self.cut.rows)
            yield from to.flush(to.frontier)
        else:
            self._keep(transaction)
            self._spool(self.cut.place)
            # The complete ones need not wait.
            yield from to.flush(to.frontier_at(transaction.previous))

    def _keep(self, transaction: OpenTransaction) -> None:
        to = self.to
        if to.spooling:
            return
        self._decode(self.first_rows[-1])
        self.transactions, self.first_rows = [], []
        self.region = self.begun
        to.spooling = True

    def _kept_commit(self, mark: StreamMark) -> Iterator[Flush]:
        to, transaction = self.to, self.to.open
        if transaction is None:
            raise ChangefeedError(Code.UNEXPECTED_MESSAGE, "a commit without a begin")
        self._spool(mark.place - pgoutput.TAG_OFFSET)
        to.spooling = False
        self.from_row = mark.rows
        before = to.frontier_at(transaction.previous)
        yield from self._replay(transaction, before, streamed=False)
        to.commit(pgoutput.read_commit(self.inbox.data, mark.place).end)

    def _replay(
        self, transaction: OpenTransaction, before: Frontier, *, streamed: bool
    ) -> Iterator[Flush]:
        to = self.to
        yield from to.flush(before)
        yield from replay(to, transaction, streamed=streamed)
        to.spool.discard(transaction.xid)

    # -------------------------------------------------------------------------- marks

    def _begin(self, mark: StreamMark) -> None:
        message = pgoutput.read_begin(self.inbox.data, mark.place)
        self._enter(self.to.begin(message.lsn, message.commit_us, message.xid), mark.rows)
        self.begun = pgoutput.frame_end(self.inbox.data, mark.place)

    def _enter(self, transaction: OpenTransaction, row: int) -> None:
        self.transactions.append(transaction)
        self.first_rows.append(row)

    def _commit(self, mark: StreamMark) -> None:
        transaction = self.to.open
        if transaction is not None and self.first_rows:
            self._see(transaction, self.first_rows[-1], mark.rows)
        self.to.commit(pgoutput.read_commit(self.inbox.data, mark.place).end)

    def _see(self, transaction: OpenTransaction, first: int, upto: int) -> None:
        if upto > first:
            transaction.touched |= self.inbox.has_table_rows(first, upto)
            transaction.spoke |= self.inbox.logical_between(first, upto) > 0

    def _message(self, mark: StreamMark) -> None:
        """A logical message outside of any transaction; it is the row before the mark."""
        if self.to.open is not None:
            raise ChangefeedError(
                Code.UNEXPECTED_MESSAGE, "a message of no transaction came inside of one"
            )
        end = pgoutput.read_message_lsn(self.inbox.data, mark.place)
        self._enter(self.to.outside(end), mark.rows - 1)

    def _relation(self, mark: StreamMark) -> None:
        if self.to.spooling:
            return
        body = pgoutput.relation_body(self.inbox.data, mark.place, streamed=False)
        if self.to.relations.changes(body):
            if self._parts(mark):
                return
            self._decode(mark.rows)
        transaction = self.to.open
        self.to.relations.put(body, transaction.xid if transaction else 0)

    def _truncate(self, mark: StreamMark) -> None:
        if self.to.spooling or self._parts(mark):
            return
        self._decode(mark.rows)
        transaction = self.to.open
        if transaction is None:
            return
        transaction.touched = True
        if not transaction.skip:
            oids = pgoutput.read_truncate(self.inbox.data, mark.place, streamed=False)
            self.to.truncate(oids, transaction)

    def _parts(self, mark: StreamMark) -> bool:
        """Rows of the open transaction lie before this mark: it goes into the spool."""
        transaction = self.to.open
        if transaction is None or transaction.skip or mark.rows == self.first_rows[-1]:
            return False
        self._keep(transaction)
        return True

    def _keepalive(self, mark: StreamMark) -> None:
        message = pgoutput.read_keepalive(self.inbox.data, mark.place)
        self.to.keepalive(message)

    def _nothing(self, mark: StreamMark) -> None:
        """Type and Origin: nothing that rows need."""

    # ------------------------------------------------------------------ large ones

    def _stream_start(self, mark: StreamMark) -> None:
        self.to.streaming = pgoutput.read_xid(self.inbox.data, mark.place)
        self.region = pgoutput.frame_end(self.inbox.data, mark.place)

    def _stream_stop(self, mark: StreamMark) -> None:
        self._spool(mark.place - pgoutput.TAG_OFFSET)
        self.to.streaming = None

    def _spool(self, end: int) -> None:
        transaction = self.to.open
        xid = transaction.xid if transaction is not None else self.to.streaming
        if xid is not None and end > self.region:
            with memoryview(self.inbox.data) as view:
                self.to.spool.append(xid, view[self.region : end])
        self.region = end

    def _stream_abort(self, mark: StreamMark) -> None:
        self.to.spool.abort(*pgoutput.read_abort(self.inbox.data, mark.place))

    def _stream_commit(self, mark: StreamMark) -> Iterator[Flush]:
        to, data = self.to, self.inbox.data
        xid = pgoutput.read_xid(data, mark.place)
        message = pgoutput.read_commit(data, mark.place, streamed=True)
        before = to.frontier
        transaction = to.begin(message.lsn, message.commit_us, xid)
        if transaction.skip:
            transaction.touched = not to.settled and has_rows(to.spool, xid)
            to.spool.discard(xid)
        else:
            yield from self._replay(transaction, before, streamed=True)
        to.commit(message.end)

    # --------------------------------------------------------------------------- rows

    def _decode(self, upto: int) -> None:
        """Decode the rows since the last call; the open transaction goes on."""
        first, self.from_row = self.from_row, upto
        transactions, starts = self.transactions, self.first_rows
        goes_on = self.to.open is not None and bool(transactions)
        self.transactions = [transactions[-1]] if goes_on else []
        self.first_rows = [upto] if goes_on else []
        if upto <= first:
            return
        if goes_on:
            self._see(transactions[-1], max(starts[-1], first), upto)
        tags = np.array(self.inbox.rows[first:upto], np.intp)
        ends = [*starts[1:], upto]
        counts = np.array(ends, np.intp) - np.maximum(np.array(starts, np.intp), first)
        if int(counts.sum()) != len(tags):
            raise ChangefeedError(Code.UNEXPECTED_MESSAGE, "rows outside of a transaction")
        of = np.repeat(np.arange(len(counts)), counts)
        if any(transaction.skip for transaction in transactions):
            wanted = ~np.array([t.skip for t in transactions])[of]
            tags, of = tags[wanted], of[wanted]
            if not len(tags):
                return
        self.to.rows(
            self.inbox.data,
            self.block,
            RowMessages(
                tags, of, transactions, np.array([t.xid for t in transactions], np.intp)[of]
            ),
        )


_ACTIONS: dict[int, Callable[[_Pass, StreamMark], None]] = {
    pgoutput.BEGIN: _Pass._begin,
    pgoutput.COMMIT: _Pass._commit,
    pgoutput.RELATION: _Pass._relation,
    pgoutput.TRUNCATE: _Pass._truncate,
    pgoutput.KEEPALIVE: _Pass._keepalive,
    pgoutput.TYPE: _Pass._nothing,
    pgoutput.ORIGIN: _Pass._nothing,
    pgoutput.MESSAGE: _Pass._message,
    pgoutput.STREAM_START: _Pass._stream_start,
    pgoutput.STREAM_STOP: _Pass._stream_stop,
    pgoutput.STREAM_ABORT: _Pass._stream_abort,
}
