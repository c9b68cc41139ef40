"""The connection between the node and a worker of Spark that stays: encrypted, in order, and ended
when anything about it is wrong."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.listening import receive
from changefeed.spark.standing import LostWorker, StandingWorker, _Channel, _obey
from tests.helpers.waiting import until

KEY, SECRET = b"k" * 32, b"a password"


def _both(
    node: socket.socket, worker: socket.socket, key: bytes = KEY
) -> tuple[_Channel, _Channel]:
    made: list[_Channel] = []
    other = threading.Thread(target=lambda: made.append(_Channel(worker, key, worker=True)))
    other.start()
    first = _Channel(node, KEY, worker=False)
    other.join()
    return first, made[0]


@contextmanager
def channels(key: bytes = KEY) -> Iterator[tuple[_Channel, _Channel, socket.socket, socket.socket]]:
    """Those of the node and of a worker, with their sockets."""
    with ExitStack() as stack:
        node, worker = (stack.enter_context(each) for each in socket.socketpair())
        yield *_both(node, worker, key), node, worker


def test_both_sides_understand_each_other() -> None:
    with channels() as (node, worker, _, _):
        for n in range(3):
            node.send(SECRET * n)
            assert worker.receive() == SECRET * n
            worker.send(b"answer %d" % n)
            assert node.receive() == b"answer %d" % n


def test_bytes_that_come_in_pieces_are_received_whole_within_a_timeout() -> None:
    with ExitStack() as stack:
        near, far = (stack.enter_context(each) for each in socket.socketpair())
        far.settimeout(60)
        received: list[bytes] = []
        near.sendall(b"first ")
        waiting = threading.Thread(target=lambda: received.append(receive(far, 10)))
        waiting.start()
        until(lambda: not select.select([far], [], [], 0)[0], "the first piece is taken")
        near.sendall(b"last, and more")
        waiting.join()
        assert received == [b"first last"]
        near.close()
        with pytest.raises(ConnectionError, match="in the middle"):
            receive(far, 100)


def test_nothing_is_sent_in_the_clear_and_nothing_twice_alike() -> None:
    with channels() as (node, _, _, raw):
        node.send(SECRET)
        first = raw.recv(1000)
        node.send(SECRET)
        assert SECRET not in first
        assert raw.recv(1000) != first


@pytest.mark.parametrize("wrong", ["altered", "repeated", "own", "other key", "too large"])
def test_what_is_not_of_the_other_side_ends_the_connection(wrong: str) -> None:
    with channels(b"x" * 32 if wrong == "other key" else KEY) as (node, worker, node_raw, raw):
        node.send(SECRET)
        frame = raw.recv(1000)
        if wrong == "altered":
            frame = frame[:-1] + bytes([frame[-1] ^ 1])
        elif wrong == "repeated":
            node_raw.sendall(frame)
            assert worker.receive() == SECRET
        elif wrong == "own":
            worker.send(SECRET)
            frame = node_raw.recv(1000)
        elif wrong == "too large":
            frame = b"\xff" * 4 + frame
        node_raw.sendall(frame)
        with pytest.raises(ConnectionError):
            worker.receive()


def _shout(text: str, kept: ExitStack) -> str:
    return text.upper()


def _refuse(kept: ExitStack) -> None:
    raise ChangefeedError(Code.TABLE_NOT_SCANNABLE, "no", detail="why", hint="mend it")


def _fail(kept: ExitStack) -> None:
    raise ValueError("a value of a row")


@contextmanager
def worker() -> Iterator[tuple[StandingWorker, threading.Thread]]:
    """One that is a thread of this process."""
    with channels() as (node, there, node_raw, _):
        found = StandingWorker(node)
        threads = [threading.Thread(target=target, daemon=True) for target in (
            partial(_until_it_ends, found.follow), partial(_until_it_ends, partial(_obey, there))
        )]  # fmt: skip
        for thread in threads:
            thread.start()
        yield found, threads[1]
        node_raw.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def _until_it_ends(function: Callable[[], Any]) -> None:
    try:
        function()
    except OSError:
        return


def test_a_worker_calls_what_it_is_sent() -> None:
    with worker() as (found, _):
        assert found.call(partial(_shout, "a")) == "A"
        with pytest.raises(ChangefeedError) as raised:
            found.call(_refuse)
        error = raised.value
        assert (error.code, error.message, error.detail, error.hint) == (
            Code.TABLE_NOT_SCANNABLE, "no", "why", "mend it",
        )  # fmt: skip
        with pytest.raises(ChangefeedError) as raised:
            found.call(_fail)
        assert raised.value.code is Code.SPARK_FAILED
        assert "a value" not in str(raised.value)
        assert found.call(partial(_shout, "b")) == "B"


def test_what_a_worker_keeps_is_released_when_it_is_dismissed(tmp_path: Any) -> None:
    with worker() as (found, thread):
        found.call(partial(_keep, tmp_path / "released"))
        assert not (tmp_path / "released").exists()
        found.dismiss()
        thread.join(30)
        assert (tmp_path / "released").exists()


def _keep(mark: Any, kept: ExitStack) -> None:
    kept.callback(mark.touch)


def test_a_call_of_a_lost_worker_fails_at_once() -> None:
    node, there = socket.socketpair()
    with node, there:
        mine, _ = _both(node, there)
        found = StandingWorker(mine)
        follower = threading.Thread(target=partial(_until_it_ends, found.follow))
        follower.start()
        there.shutdown(socket.SHUT_RDWR)
        follower.join(30)
        assert found.lost
        for _ in range(2):
            with pytest.raises(LostWorker):
                found.call(partial(_shout, "a"))
