"""``%%changefeed``: statements in the cells of a notebook."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import changefeed
from changefeed import dbapi
from changefeed.dbapi.magic import ResultTable
from tests.helpers.served import Bench


class FakeNotebook:
    """Has what is used of IPython's shell; tests/e2e/test_orchestration.py runs a real one."""

    def __init__(self) -> None:
        self.magics: dict[tuple[str, str], Callable[..., object]] = {}

    def register_magic_function(
        self, func: Callable[..., object], magic_kind: str, magic_name: str
    ) -> None:
        self.magics[magic_kind, magic_name] = func


def test_cells_of_a_notebook(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = FakeNotebook()
    changefeed.load_ipython_extension(notebook)
    magic = notebook.magics["line_cell", "changefeed"]
    with pytest.raises(dbapi.ProgrammingError, match="not connected"):
        magic("", "SHOW JOBS")
    assert magic(bench.server.address) is None
    made = "CREATE CHANGEFEED f FOR orders INTO 'kafka://k:9092'"
    shown = magic("", f"{made};\n-- twice\nPAUSE CHANGEFEED f; PAUSE CHANGEFEED f;\nSHOW JOBS")
    assert isinstance(shown, ResultTable) and shown.columns[:2] == ("job_id", "name")
    assert [row[0] for row in shown] == [1]
    printed = capsys.readouterr().out
    assert "NOTICE: changefeed will emit to topic orders\n" in printed
    assert 'NOTICE: changefeed "f" is paused already\n' in printed
    assert magic("", "USE shop") is None
    with pytest.raises(dbapi.ProgrammingError):
        magic("", "SHOW JOBS; SHOW CHANGEFEED nobody")
    bench.world.target_troubles = ["the broker is away"]
    magic("", "VALIDATE CREATE CHANGEFEED g FOR orders INTO 'kafka://k:9092'")
    assert "the broker is away (CF5001)\n" in capsys.readouterr().out
    stream = magic("", "CREATE CHANGEFEED FOR orders")
    assert isinstance(stream, ResultTable) and stream[0][:2] == ("orders", "[1]")
    magic(bench.server.address)  # The connection before it is closed.
    magic.close()  # type: ignore[attr-defined]


def test_a_table_of_rows() -> None:
    table = ResultTable(["name", "n"], [("a<b", 1), ("c", None)])
    assert repr(table) == "name  n\n----  -\na<b   1\nc"
    assert "<td>a&lt;b</td><td>1</td></tr>" in table._repr_html_()
    assert "<thead><tr><th>name</th><th>n</th></tr></thead>" in table._repr_html_()
    assert list(table) == [("a<b", 1), ("c", None)]
