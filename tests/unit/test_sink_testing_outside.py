"""The kit notices a constructor that connects and a sink that prints."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import pytest

from changefeed_testing.sinks.outside import assert_connects_to_nothing, assert_prints_nothing


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_a_connection_is_noticed(server: socket.socket) -> None:
    def make() -> None:
        with socket.socket() as client:
            client.connect(server.getsockname())

    with pytest.raises(AssertionError, match="asked for connections"):
        assert_connects_to_nothing(make)


def test_a_name_that_is_looked_up_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"asked for connections: .*localhost"):
        assert_connects_to_nothing(lambda: socket.getaddrinfo("localhost", 1))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system lists no open files")
def test_a_connection_past_python_is_noticed() -> None:
    with pytest.raises(AssertionError, match="left connections open"):
        assert_connects_to_nothing(socket.socket)


def test_what_connects_to_nothing_is_handed_on() -> None:
    assert assert_connects_to_nothing(lambda: 7) == 7


@pytest.mark.parametrize(
    "say",
    [
        lambda: print("said"),
        lambda: print("said", file=sys.stderr),
        lambda: os.write(1, b"said"),
        lambda: os.write(2, b"said"),
    ],
    ids=["print", "stderr", "fd 1", "fd 2"],
)
def test_words_are_noticed(say: object) -> None:
    with pytest.raises(AssertionError, match="said"), assert_prints_nothing():
        say()  # type: ignore[operator]


def test_silence_is_fine_and_the_streams_come_back(capfd: pytest.CaptureFixture[str]) -> None:
    with assert_prints_nothing():
        pass
    os.write(1, b"after")
    assert capfd.readouterr().out == "after"


def test_an_error_of_the_block_goes_through() -> None:
    with pytest.raises(ZeroDivisionError), assert_prints_nothing():
        raise ZeroDivisionError
