"""``%load_ext changefeed``: statements in the cells of a notebook.

IPython is not imported: one method of its shell is used, which is handed in.
"""

from __future__ import annotations

import atexit
import html
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from changefeed.dbapi.connection import ClientConnection, ClientCursor, connect
from changefeed.dbapi.errors import ProgrammingError
from grammar.split import split

#: Rows of a feed without ``INTO`` that a cell shows.
STREAM_ROWS = 20


class NotebookShell(Protocol):
    """What is used of IPython's ``InteractiveShell``."""

    def register_magic_function(
        self, func: Callable[[str, str | None], object], magic_kind: str, magic_name: str
    ) -> None: ...


class ResultTable(list[tuple[Any, ...]]):
    """The rows of a statement; a notebook shows them as a table.

    Attributes:
        columns: their names.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        super().__init__(rows)
        self.columns = tuple(columns)

    def _texts(self) -> list[list[str]]:
        return [["" if value is None else str(value) for value in row] for row in self]

    def __repr__(self) -> str:
        lines = [list(self.columns), *self._texts()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * width for width in widths])
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        def row(texts: Sequence[str], tag: str) -> str:
            cells = "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)
            return f"<tr>{cells}</tr>"

        body = "".join(row(texts, "td") for texts in self._texts())
        head = row(self.columns, "th")
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


class Magic:
    """``%changefeed URL`` connects; ``%%changefeed`` executes the statements of a cell."""

    def __init__(self, connecting: Callable[[str], ClientConnection] = connect) -> None:
        self._connecting = connecting
        self._connection: ClientConnection | None = None

    def __call__(self, line: str, cell: str | None = None) -> ResultTable | None:
        """The rows of the last statement, which the notebook shows. Notices are printed.

        Args:
            line: the address of a node or a state, for this cell and those after it; nothing for
                the one before. Its token is that of ``CHANGEFEED_TOKEN``.
            cell: statements.

        Raises:
            Error: a statement failed; those before it have run.
        """
        place = line.strip()
        if place:
            self.close()
            self._connection = self._connecting(place)
        if self._connection is None:
            raise ProgrammingError(
                "the notebook is not connected", hint="%changefeed https://node:8443 connects it."
            )
        shown = None
        for piece in split(cell or ""):
            with self._connection.execute(piece.text) as cursor:
                shown = _shown(cursor)
        return shown

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _shown(cursor: ClientCursor) -> ResultTable | None:
    for notice in cursor.notices:
        print(f"NOTICE: {notice}")
    if cursor.failure is not None:
        print(f"{cursor.failure} ({cursor.failure.code})")
    if cursor.description is None:
        return None
    rows = cursor.fetchall() if cursor.rowcount >= 0 else cursor.fetchmany(STREAM_ROWS)
    return ResultTable([column[0] for column in cursor.description], rows)


def load_ipython_extension(shell: NotebookShell) -> None:
    """What ``%load_ext changefeed`` calls."""
    magic = Magic()
    # A node that the notebook started for a state ends with it.
    atexit.register(magic.close)
    shell.register_magic_function(magic, "line_cell", "changefeed")
