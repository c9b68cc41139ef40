"""SQL sessions with a MySQL or MariaDB server, and its errors in our words.

Every session prints values alike: UTC, UTF-8, and modes that change neither the text of a CHAR nor
the meaning of a quote. Rows of a scan do not come through here as objects: a scan reads the
packets of its answer by :meth:`MySQLSession.packets`.
"""

from __future__ import annotations

import io
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.mysql.address import Address

Row = tuple[Any, ...]

#: What each session begins with. ANSI_QUOTES so that names are quoted as in standard SQL.
_SETTINGS = (
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION net_write_timeout = 3600",
)
#: The command that runs a statement.
_COM_QUERY = 3
#: Seconds without a byte after which a connection counts as lost.
_READ_SECONDS = 3600.0


class ResultBytes:
    """The bytes of an answer, from its first row on, past the client library's buffer."""

    def __init__(self, buffered: io.BufferedReader) -> None:
        # An answer has at least the packet that ends it: this waits for no more than that.
        self._head = buffered.read(len(buffered.peek()))
        self._raw = buffered.raw

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of ``buffer``, as soon as there is anything; 0 at the end."""
        if self._head:
            taken = min(len(self._head), len(buffer))
            buffer[:taken] = self._head[:taken]
            self._head = self._head[taken:]
            return taken
        return self._raw.readinto(buffer) or 0


def literal(text: str) -> str:
    """A text as a literal of SQL, whatever it holds."""
    return "_utf8mb4 0x" + text.encode().hex() if text else "''"


class MySQLSession:
    """One connection. Not thread-safe. Close it after an error that names the connection."""

    def __init__(self, address: Address, connection: Any) -> None:
        self._address = address
        self._connection = connection
        #: An answer of :meth:`packets` is not read to its end: nothing else can be asked.
        self.mid_answer = False
        version = str(connection.get_server_info())
        self.flavor = "mariadb" if "mariadb" in version.lower() else "mysql"
        #: As three numbers; MariaDB may put ``5.5.5-`` before its own.
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", version.removeprefix("5.5.5-"))
        self.version = tuple(map(int, found.groups())) if found else (0, 0, 0)

    @property
    def raw(self) -> Any:
        """The client library's connection, for who takes it over."""
        return self._connection

    @property
    def is_mariadb(self) -> bool:
        """MariaDB, which differs in GTIDs, JSON and some statements."""
        return self.flavor == "mariadb"

    def rows(self, sql: str, doing: str = "ask the server") -> list[Row]:
        """All rows of a small answer; numbers are Python's, text is ``str`` where it can be."""
        with explained(self._address, doing), self._connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(map(_plain, row)) for row in cursor.fetchall()]

    def mappings(self, sql: str, doing: str = "ask the server") -> list[dict[str, Any]]:
        """The same with the names of columns, for answers whose columns differ by version."""
        with explained(self._address, doing), self._connection.cursor() as cursor:
            cursor.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]

    def value(self, sql: str, doing: str = "ask the server") -> Any:
        """The first value of the first row; None without a row."""
        rows = self.rows(sql, doing)
        return rows[0][0] if rows else None

    def account(self) -> str:
        """Who is logged in, as GRANT takes it: ``'user'@'host'``."""
        user, _, host = str(self.value("SELECT CURRENT_USER()")).rpartition("@")
        return f"'{user}'@'{host}'"

    def run(self, *statements: str, doing: str = "ask the server") -> None:
        """Statements without an answer."""
        with explained(self._address, doing), self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def variables(self, *names: str) -> dict[str, str]:
        """Global settings of the server; one that it does not have is absent."""
        listed = ", ".join(literal(name) for name in names)
        answer = self.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
        return {str(name).lower(): str(value) for name, value in answer}

    def packets(self, sql: str, columns: int) -> ResultBytes:
        """Run a query and give the bytes from the first row's packet on.

        The caller reads the answer to its end and clears :attr:`mid_answer`, or closes the session.
        """
        connection = self._connection
        with explained(self._address, "read a table"):
            connection._execute_command(_COM_QUERY, sql)
            head = connection._read_packet()
            if head.read_length_encoded_integer() != columns:
                raise ChangefeedError(
                    Code.UNEXPECTED_MESSAGE, "the server's answer has other columns than asked"
                )
            # One packet per column, and one that ends the list.
            for _ in range(columns + 1):
                connection._read_packet()
            self.mid_answer = True
            return ResultBytes(connection._rfile)

    def explained(self, doing: str) -> AbstractContextManager[None]:
        """Errors inside are ours, as those of the session's own methods are."""
        return explained(self._address, doing)

    def server_error(self, error: Exception, doing: str) -> ChangefeedError:
        """What an error that the server sent in an answer means for us."""
        return server_error(self._address, error, doing)

    def alive(self) -> bool:
        """The server still answers on this connection."""
        import pymysql

        try:
            self._connection.ping(reconnect=False)
        except (pymysql.MySQLError, OSError):
            return False
        return True

    def close(self) -> None:
        """End the connection at once; a query that runs ends with it."""
        self._connection._force_close()


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def connect(address: Address) -> MySQLSession:
    """A new session.

    Raises:
        ChangefeedError: CF2001, CF2002; CF2003 PyMySQL is not installed.
    """
    session = MySQLSession(address, open_connection(address))
    try:
        session.run(*_SETTINGS, doing="begin a session")
        if not session.is_mariadb:
            # Sizes of now, not of a day ago.
            session.run("SET SESSION information_schema_stats_expiry = 0")
    except BaseException:
        session.close()
        raise
    return session


def open_connection(address: Address) -> Any:
    """A connection of the client library, logged in.

    Raises:
        ChangefeedError: as :func:`connect`.
    """
    import pymysql

    context = address.tls.context()
    with explained(address, "connect"):
        return pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=int(address.connect_timeout),
            read_timeout=int(_READ_SECONDS),
            program_name="changefeed",
            **_encryption(address, context),
        )


def _encryption(address: Address, context: Any) -> dict[str, Any]:
    if context is None:
        return {"ssl_disabled": True}
    # Without a context PyMySQL prefers TLS; with one it demands it.
    return {"ssl": context} if address.tls.required else {}


class Sessions:
    """Idle sessions of one address, for short questions. Thread-safe."""

    def __init__(self, address: Address, keep: int = 2) -> None:
        self._address = address
        self._keep = keep
        self._lock = threading.Lock()
        self._idle: list[MySQLSession] = []

    @contextmanager
    def session(self) -> Iterator[MySQLSession]:
        """A session for one question; it is closed when the question fails."""
        session = self._take() or connect(self._address)
        try:
            yield session
        except BaseException:
            session.close()
            raise
        with self._lock:
            if len(self._idle) < self._keep:
                self._idle.append(session)
                return
        session.close()

    def _take(self) -> MySQLSession | None:
        while True:
            with self._lock:
                session = self._idle.pop() if self._idle else None
            if session is None or session.alive():
                return session
            session.close()

    def close(self) -> None:
        """Close what is idle; the object stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()


# ------------------------------------------------------------------------- errors

#: What comes of bytes that are no answer.
_UNREADABLE = (
    struct.error, AssertionError, LookupError, ValueError, ArithmeticError, TypeError,
)  # fmt: skip
_LOGIN = frozenset({1045, 1251, 1698, 1862, 1820, 2059, 2061, 3118, 3955, 4151})
_RIGHTS = frozenset({1044, 1142, 1143, 1227, 1370, 3879})
_BUSY = frozenset({1040, 1205, 1213, 1226, 1203, 3024, 1969})
#: The server is there, but not (yet, or for us) in service, or ended the session.
_AWAY = frozenset({1053, 1129, 1130, 1152, 1158, 1159, 1160, 1161, 1927, 3169, 4031})


@contextmanager
def explained(address: Address, doing: str) -> Iterator[None]:
    """Errors of PyMySQL and of the socket as ours; the server's own words are the detail.

    PyMySQL believes what a server says of lengths and of text: over bytes that make no sense it
    raises whatever Python does.
    """
    import pymysql

    try:
        yield
    except ChangefeedError:
        raise
    except pymysql.MySQLError as error:
        raise server_error(address, error, doing) from None
    except OSError as error:
        raise _unreachable(address, error.strerror or type(error).__name__) from None
    except _UNREADABLE as error:
        # The text of such an error may repeat a value.
        raise ChangefeedError(
            Code.UNEXPECTED_MESSAGE,
            f"the answer of the server at {address} cannot be read: cannot {doing}",
            detail=type(error).__name__,
            hint="is it a MySQL or MariaDB server? If so, something in between changes bytes.",
        ) from None


def server_error(address: Address, error: Exception, doing: str) -> ChangefeedError:
    """What an error of the client library or the server means for us."""
    number, words = _number(error), _words(error)
    if number in _LOGIN:
        return ChangefeedError(
            Code.SOURCE_REFUSED_LOGIN,
            f"{address} refused the login of user {address.user!r}",
            detail=words,
        )
    if number in _RIGHTS:
        return ChangefeedError(
            Code.SOURCE_PERMISSION_MISSING, f"user {address.user!r} may not {doing}", detail=words
        )
    if number in _BUSY:
        return ChangefeedError(
            Code.SOURCE_BUSY, f"{address} is busy: cannot {doing} now", detail=words
        )
    if number in _AWAY or not number or 2000 <= number < 3000:
        return _unreachable(address, words)
    return ChangefeedError(
        Code.SOURCE_NOT_SET_UP, f"{address} refused to {doing}", detail=f"error {number}: {words}"
    )


def _unreachable(address: Address, words: str) -> ChangefeedError:
    return ChangefeedError(
        Code.SOURCE_UNREACHABLE, f"cannot reach the MySQL server {address}", detail=words
    )


def _number(error: Exception) -> int:
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def error_number(error: Exception) -> int:
    """The number of a server's error that :func:`explained` translated; 0 for another error."""
    match = re.match(r"error (\d+):", getattr(error, "detail", "") or "")
    return int(match[1]) if match else 0


def _words(error: Exception) -> str:
    words = str(error.args[1]) if len(error.args) > 1 else ""
    return words[:500]


def listed(names: Sequence[str]) -> str:
    """Texts as the list of an IN."""
    return ", ".join(map(literal, names))
