"""Workers of a Spark job that stay until they are dismissed, and call what this process sends them.

A task of an ordinary job brings its work. Some work needs processes that are there first: sessions
that see one instant of a database must all be opened at that instant, and read afterwards.

Each worker connects to this process and keeps the connection. What both send is encrypted by a key
that only the job's task has, which is sealed (:mod:`changefeed.spark.sealed`). A worker that is
silent for :data:`SILENT_SECONDS` counts as lost. Spark starts the task of a lost worker again, but
what that worker held is gone: the new one is dismissed.
"""

from __future__ import annotations

import hmac
import os
import pickle
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self, TypeVar

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.spark_jobs import JobGroup
from changefeed.spark.executors import errors_packed
from changefeed.spark.failure import kind_of, pack, unpack
from changefeed.spark.listening import WorkerPort, keep_alive, receive
from changefeed.spark.progress import driver_host
from changefeed.spark.sealed import sealed

if TYPE_CHECKING:
    import pyarrow as pa

    from changefeed.spark.session import NodeSpark

T = TypeVar("T")

#: A worker that has sent nothing for so long is lost; what it sends while it works, and how often.
SILENT_SECONDS = 60.0
_SIGN, _SIGN_SECONDS = b"", 5.0
#: How long to wait for other workers once one is there: those of a cold cluster unpack Python.
ARRIVAL_SECONDS = 30.0
#: For a worker to end after it was dismissed.
_END_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
#: How often a wait looks whether it is to end.
_LOOK_SECONDS = 0.2

_SIZE = struct.Struct(">I")
_SALT = 16
#: The largest message: a plan and a part, or figures.
_MOST = 64 << 20
_DISMISSED = b""


class LostWorker(ChangefeedError):
    """The connection to a worker ended."""

    def __init__(self) -> None:
        super().__init__(
            Code.SCAN_INTERRUPTED,
            "a Spark worker that read tables was lost",
            hint="the scan of the table is repeated automatically.",
        )


class _Channel:
    """Messages between this process and a worker, in order and encrypted. One thread receives."""

    def __init__(self, connection: socket.socket, key: bytes, *, worker: bool) -> None:
        """Agree on keys of the connection, which ``key`` and the salts of both sides determine.

        Raises:
            OSError: the other side went away.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._connection = connection
        own = os.urandom(_SALT)
        connection.sendall(own)
        other = receive(connection, _SALT)
        salts = other + own if worker else own + other
        ends = [AESGCM(hmac.digest(key, salts + end, "sha256")) for end in (b"node", b"worker")]
        self._in, self._out = ends if worker else reversed(ends)
        self._received = self._sent = 0
        self._sending = threading.Lock()

    def send(self, content: bytes) -> None:
        """Raises OSError: the connection ended."""
        with self._sending:
            nonce = self._sent.to_bytes(12, "big")
            self._sent += 1
            frame = self._out.encrypt(nonce, content, None)
            self._connection.sendall(_SIZE.pack(len(frame)) + frame)

    def receive(self) -> bytes:
        """Raises OSError: the connection ended, or the message is not of the other side."""
        from cryptography.exceptions import InvalidTag

        (size,) = _SIZE.unpack(receive(self._connection, _SIZE.size))
        if size > _MOST:
            raise ConnectionError("the message is too large")
        frame = receive(self._connection, size)
        nonce = self._received.to_bytes(12, "big")
        self._received += 1
        try:
            return self._in.decrypt(nonce, frame, None)
        except InvalidTag:
            raise ConnectionError("the message is not of the other side") from None


class StandingWorker:
    """One worker, as a :class:`changefeed.sources.base.ScanWorker`. Used by one thread at a time.

    Attributes:
        lost: nothing can be called there any longer.
    """

    def __init__(self, channel: _Channel) -> None:
        self.lost = False
        self._channel = channel
        self._answers: queue.Queue[bytes | None] = queue.Queue()

    def call(self, function: Callable[[ExitStack], T]) -> T:
        """See :meth:`changefeed.sources.base.ScanWorker.call`."""
        from pyspark import cloudpickle

        dumps: Callable[[object], bytes] = cloudpickle.dumps
        try:
            if self.lost:
                raise ConnectionError
            self._channel.send(dumps(function))
        except OSError:
            raise LostWorker from None
        answer = self._answers.get()
        if answer is None:
            self._answers.put(None)
            raise LostWorker
        value, failed = pickle.loads(answer)
        if (error := unpack(failed)) is not None:
            raise error
        result: T = value
        return result

    def dismiss(self) -> None:
        """Let it end, once it has done what it does."""
        try:
            self._channel.send(_DISMISSED)
        except OSError:
            self.lost = True

    def follow(self) -> None:
        """Take its answers until the connection ends. Raises OSError then."""
        try:
            while True:
                answer = self._channel.receive()
                if answer != _SIGN:
                    self._answers.put(answer)
        finally:
            self.lost = True
            self._answers.put(None)


class StandingWorkers:
    """The workers of one job, from the start of the job to :meth:`close`."""

    def __init__(
        self,
        spark: NodeSpark,
        count: int,
        group: JobGroup,
        clock: Clock = SYSTEM_CLOCK,
        arrival: float = ARRIVAL_SECONDS,
    ) -> None:
        """Start the job.

        Args:
            spark: has a session.
            count: of workers that are wanted; each occupies a core.
            group: name for :meth:`NodeSpark.cancel`, which ends all of them.
            arrival: how long to wait for others once one is there.
        """
        self._spark = spark
        self._count = count
        self._group = group
        self._clock = clock
        self._arrival = arrival
        self._key = secrets.token_bytes(32)
        self._changed = threading.Condition()
        self._there: dict[int, StandingWorker] = {}
        self._complete = self._over = False
        self._error: ChangefeedError | None = None
        self._job = threading.Thread(target=self._run, name="scan-workers", daemon=True)
        self._job.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def gathered(self, stopping: Callable[[], bool] = lambda: False) -> list[StandingWorker]:
        """Wait for the workers: all, or those who are there some time after the first one.

        Later ones are dismissed.

        Args:
            stopping: asked meanwhile; true ends the wait without a worker.

        Raises:
            ChangefeedError: the job failed before a worker came.
        """
        first: float | None = None
        with self._changed:
            while len(self._there) < self._count and not self._over:
                if stopping():
                    return []
                now = self._clock.monotonic()
                if first is None and self._there:
                    first = now
                if first is not None and now - first >= self._arrival:
                    break
                self._clock.wait(self._changed, _LOOK_SECONDS)
            self._complete = True
            if self._error is not None:
                raise self._error
            return list(self._there.values())

    def close(self) -> None:
        """Dismiss all workers; returns when the job has ended. May be called again."""
        with self._changed:
            self._complete = True
            there = list(self._there.values())
        for worker in there:
            worker.dismiss()
        self._job.join(_END_SECONDS)
        if self._job.is_alive():
            self._spark.cancel(self._group)
            self._job.join()

    def _run(self) -> None:
        try:
            with self._spark.use(self._group) as session:
                host = driver_host(session)
                with (
                    WorkerPort(host, self._attend, "scan-workers-port") as port,
                    sealed(_Stay(host, port.number, self._key), host) as task,
                ):
                    numbers = session.range(self._count, numPartitions=self._count)
                    numbers.mapInArrow(task, "id bigint").collect()
        except ChangefeedError as error:
            self._error = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _attend(self, connection: socket.socket) -> None:
        connection.settimeout(SILENT_SECONDS)
        keep_alive(connection)
        channel = _Channel(connection, self._key, worker=False)
        number: int = pickle.loads(channel.receive())
        worker = StandingWorker(channel)
        with self._changed:
            late = self._complete or number in self._there
            if not late:
                self._there[number] = worker
                self._changed.notify_all()
        if late:
            worker.dismiss()
        worker.follow()


class _Stay:
    """What each task of the job does."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._address = (host, port)
        self._key = key

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                with errors_packed():
                    self._serve(number)
        yield from ()

    def _serve(self, number: int) -> None:
        try:
            with socket.create_connection(self._address, _CONNECT_SECONDS) as connection:
                connection.settimeout(None)
                keep_alive(connection)
                channel = _Channel(connection, self._key, worker=True)
                channel.send(pickle.dumps(number))
                ended = threading.Event()
                threading.Thread(target=_sign, args=(channel, ended), daemon=True).start()
                try:
                    _obey(channel)
                finally:
                    ended.set()
        except OSError:
            return  # the node is gone, or waits no longer for this worker


def _sign(channel: _Channel, ended: threading.Event) -> None:
    """Show the node that this process lives."""
    while not SYSTEM_CLOCK.wait(ended, _SIGN_SECONDS):
        try:
            channel.send(_SIGN)
        except OSError:
            return


def _obey(channel: _Channel) -> None:
    with ExitStack() as kept:
        while (asked := channel.receive()) != _DISMISSED:
            channel.send(pickle.dumps(_answer(asked, kept)))


def _answer(asked: bytes, kept: ExitStack) -> tuple[object, str]:
    """What the function returns, and the error that it raises, packed."""
    try:
        function: Callable[[ExitStack], object] = pickle.loads(asked)
        return function(kept), ""
    except ChangefeedError as error:
        failed = error
    except Exception as error:
        # Its text may have values of rows.
        failed = ChangefeedError(
            Code.SPARK_FAILED, f"Spark failed: {kind_of(error)}", hint="a worker's log has more."
        )
    return None, pack(failed)
