"""What a frontier remembers of a server's history, and what is held against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Flush, Frontier
from changefeed.log import LogWriter
from changefeed.log.frame import decode_frontier, encode_frontier
from changefeed.sources.postgres.assemble import Assembler
from changefeed.sources.postgres.continuity import (
    Redelivery,
    ServerHistory,
    Witness,
    check_end,
    check_timeline,
)
from changefeed.sources.postgres.inbox_pass import take
from changefeed.sources.postgres.lsn import position_of
from changefeed.sources.postgres.pgoutput import Inbox
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.spool import Spool
from tests.helpers.postgres_messages import (
    Table,
    begin,
    commit,
    keepalive,
    relation,
    row,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
)

WITNESS = Witness(lsn=500, xid=7, commit_us=1_700_000_000_000_000)
TABLE = Table(99, "t", {"id": 23}, ("id",))


def refused(call: Callable[[], object]) -> str:
    """What CF2104 says of it."""
    with pytest.raises(ChangefeedError) as caught:
        call()
    assert caught.value.code.number == "CF2104"
    return caught.value.message


class TestHistory:
    @pytest.mark.parametrize(
        "history",
        [ServerHistory(), ServerHistory(3), ServerHistory(3, WITNESS), ServerHistory(0, WITNESS)],
    )
    def test_its_text(self, history: ServerHistory) -> None:
        assert ServerHistory.parse(history.text()) == history

    @pytest.mark.parametrize("text", ["x", "1 2", "1 0/5 a 7", "1 05 6 7", "1 0/5 6 7 8"])
    def test_a_text_of_another_version(self, text: str) -> None:
        with pytest.raises(ChangefeedError) as caught:
            ServerHistory.parse(text)
        assert caught.value.code.number == "CF3001"


class TestLog:
    def test_the_frontier_keeps_it(self, tmp_path: Path) -> None:
        frontier = Frontier(Timestamp(5), position_of(600), 9, ServerHistory(2, WITNESS).text())
        writer = LogWriter(tmp_path)
        writer.append(Flush((), frontier))
        writer.close()
        again = LogWriter(tmp_path)
        assert again.frontier == frontier
        again.close()

    def test_a_log_of_an_earlier_version(self) -> None:
        plain = Frontier(Timestamp(5, 1), position_of(600), 9)
        assert encode_frontier(plain) == [5, 1, position_of(600), 9]
        assert decode_frontier([5, 1, position_of(600), 9]) == plain


class TestServer:
    def test_a_log_that_ends_below_the_frontier(self) -> None:
        check_end(600, 600, in_recovery=False)
        assert "its log ends at 0/257" in refused(lambda: check_end(599, 600, in_recovery=False))

    def test_a_standby_may_still_come_so_far(self) -> None:
        with pytest.raises(ChangefeedError) as caught:
            check_end(599, 600, in_recovery=True)
        assert caught.value.code.number == "CF2101"

    @pytest.mark.parametrize("known, present", [(0, 5), (5, 5)])
    def test_no_other_timeline(self, known: int, present: int) -> None:
        check_timeline(known, present, 600, lambda timeline: pytest.fail("nothing to look up"))

    def test_a_promotion_after_the_frontier(self) -> None:
        file = "1\t0/100\tno recovery target specified\n\n2\t0/258\tno recovery target specified\n"
        check_timeline(2, 3, 0x258, {3: file}.get)
        message = refused(lambda: check_timeline(2, 3, 0x259, {3: file}.get))
        assert "its timeline 3 left timeline 2 at 0/258" in message
        assert "up to 0/259 had been read" in message

    @pytest.mark.parametrize(
        "known, present, file", [(3, 2, None), (2, 3, "1\t0/100\tx\n"), (2, 3, None)]
    )
    def test_a_timeline_that_does_not_come_from_ours(
        self, known: int, present: int, file: str | None
    ) -> None:
        said = refused(lambda: check_timeline(known, present, 600, lambda timeline: file))
        assert f"timeline {present}, which does not come from timeline {known}" in said


class Session:
    """An assembler that goes on from 0/258 (600), fed with messages."""

    def __init__(self, folder: Path, witness: Witness | None, begin: int) -> None:
        self.settled = 0

        def settle() -> None:
            self.settled += 1

        details = {TABLE.oid: TABLE.details()}
        self.assembler = Assembler(
            Frontier(Timestamp(1), position_of(600), 4, ServerHistory(1, witness).text()),
            Relations("src", lambda oids: details, lambda schema: schema),
            Spool(folder / "spool"),
            redelivery=Redelivery(witness, begin=begin, frontier=600, settled=settle),
        )

    def hear(self, *messages: bytes) -> list[Flush]:
        """What comes of messages of the server."""
        data = b"".join(messages)
        inbox = Inbox(1 << 16)
        inbox.data[: len(data)] = data
        inbox.filled = len(data)
        inbox.scan()
        return list(take(self.assembler, inbox, inbox.cut()))


def transaction(lsn: int, xid: int, *rows: bytes, us: int = WITNESS.commit_us) -> bytes:
    return b"".join([begin(lsn, us, xid), *rows, commit(lsn, lsn + 8, us)])


ROW = relation(TABLE) + row("I", TABLE, ["1"])


def streamed(lsn: int, xid: int, *, aborted: bool = False) -> bytes:
    sub = xid + 1
    return b"".join(
        [
            stream_start(xid, True),
            relation(TABLE, xid=sub),
            row("I", TABLE, ["1"], xid=sub),
            stream_stop(),
            stream_abort(xid, sub) if aborted else b"",
            stream_commit(xid, lsn, lsn + 8, WITNESS.commit_us),
        ]
    )


class TestRedelivery:
    def test_the_witness_comes_again(self, tmp_path: Path) -> None:
        session = Session(tmp_path, WITNESS, begin=400)
        assert session.hear(transaction(450, 6, ROW), transaction(500, 7, ROW)) == []
        assert not session.assembler.settled and not session.settled
        [flush] = session.hear(transaction(700, 9, ROW))
        assert flush.frontier is not None and flush.frontier.position == position_of(708)
        assert ServerHistory.parse(flush.frontier.history).witness == Witness(
            700, 9, WITNESS.commit_us
        )
        assert session.assembler.settled and session.settled == 1

    @pytest.mark.parametrize(
        "instead",
        [
            b"",
            transaction(500, 8, ROW),
            transaction(500, 7, ROW, us=WITNESS.commit_us + 1),
            transaction(508, 7, ROW),
            streamed(508, 8),
        ],
        ids=["nothing", "another number", "another time", "another place", "a streamed one"],
    )
    @pytest.mark.parametrize(
        "then", [transaction(700, 9, ROW), keepalive(600, 0)], ids=["a row", "silence"]
    )
    def test_the_witness_does_not_come(self, tmp_path: Path, instead: bytes, then: bytes) -> None:
        session = Session(tmp_path, WITNESS, begin=400)
        refused(lambda: session.hear(instead, then))
        assert session.settled == 0

    def test_the_witness_lies_before_what_is_sent(self, tmp_path: Path) -> None:
        session = Session(tmp_path, WITNESS, begin=550)
        assert session.hear(keepalive(599, 0)) == []
        assert not session.assembler.settled
        session.hear(keepalive(600, 0))
        assert session.assembler.settled

    @pytest.mark.parametrize("late", [transaction(560, 9, ROW), streamed(560, 9)])
    def test_rows_where_there_had_been_none(self, tmp_path: Path, late: bytes) -> None:
        session = Session(tmp_path, WITNESS, begin=550)
        assert "where it had not been" in refused(lambda: session.hear(late))

    @pytest.mark.parametrize("empty", [transaction(560, 9), streamed(560, 9, aborted=True)])
    def test_transactions_without_rows_of_ours_say_nothing(
        self, tmp_path: Path, empty: bytes
    ) -> None:
        """Versions before 15 send them, and may send them or not."""
        session = Session(tmp_path, WITNESS, begin=550)
        assert session.hear(empty, keepalive(600, 0)) == []
        assert session.assembler.settled

    def test_no_witness_is_known(self, tmp_path: Path) -> None:
        session = Session(tmp_path, None, begin=600)
        session.hear(transaction(500, 7, ROW), keepalive(600, 0))
        assert session.assembler.settled

    def test_nothing_moves_before(self, tmp_path: Path) -> None:
        """Not even time, for a server that stands still."""
        session = Session(tmp_path, WITNESS, begin=400)
        before = session.assembler.frontier
        for second in (1, 2, 3):
            session.hear(keepalive(599, WITNESS.commit_us + second * 1_000_000))
        assert session.assembler.frontier == before
