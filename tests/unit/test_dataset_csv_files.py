"""The options that CSV files are read with: by their headers and by where their records end."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.dataset.csv_files import csv_options
from changefeed.dataset.extracts import data_files
from changefeed.dataset.incoming import read_extract
from changefeed.dataset.model import Dataset, DatasetColumn


class Reader:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.options: dict[str, object] = {}

    def option(self, name: str, value: object) -> Reader:
        self.options[name] = value
        return self


def options(files: list[Path] | None, *, header: bool = True) -> dict[str, object]:
    return cast(Reader, csv_options(cast(Any, Reader()), files, ",", header)).options


@pytest.mark.parametrize(
    ("content", "broken"),
    [
        ("id,a\n1,x\n", False),
        ('id,a\n1,"x"\n2,"say ""hi"""\n', False),
        ('id,a\n1,"x\ny"\n', True),
        ('id,a\n1,"x\r\ny"\n', True),
        ("id,a\n" + '1,"x"\n' * 3_000_000 + '2,"y\nz"\n', True),
        ("id,a\n" + '1,"x"\n' * 3_000_000, False),
        ("", False),
    ],
    ids=["plain", "quotes", "break", "crlf", "late break", "large", "empty"],
)
def test_records_over_several_lines_are_seen(tmp_path: Path, content: str, broken: bool) -> None:
    file = tmp_path / "a.csv"
    file.write_text(content, newline="")
    assert options([file])["multiLine"] is broken


def test_files_that_cannot_be_looked_into_may_break_lines(tmp_path: Path) -> None:
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"id\n1\n"))
    assert options([packed])["multiLine"] is True
    assert options(None)["multiLine"] is True


def test_headers_must_be_equal(tmp_path: Path) -> None:
    for name, header in (("a.csv", "id,Name"), ("b.csv", '\ufeffID,"name"'), ("c.csv", "name,id")):
        (tmp_path / name).write_text(f"{header}\n1,2\n")
    assert options([tmp_path / "a.csv", tmp_path / "b.csv"])["header"] is True
    files = data_files(str(tmp_path))
    assert options(files, header=False)["header"] is False
    with pytest.raises(ChangefeedError, match=r"different headers: a\.csv and c\.csv"):
        options(files)


def test_files_of_a_location(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "_temporary").mkdir()
    for name in ("a.csv", ".b.csv", "_SUCCESS", "day=1/c.csv", "_temporary/d.csv"):
        (tmp_path / name).write_text("id\n")
    assert data_files(str(tmp_path)) == [tmp_path / "a.csv", tmp_path / "day=1" / "c.csv"]
    assert data_files("s3a://bucket/folder") is None


def test_a_jdbc_password_is_not_in_an_error(tmp_path: Path) -> None:
    dataset = Dataset("d", (DatasetColumn("id", "int", key=True),), tmp_path, tmp_path, tmp_path)
    read = MagicMock()
    read.read.format.return_value.option.return_value.option.return_value.load.return_value = (
        SimpleNamespace(columns=["other"])
    )
    with pytest.raises(ChangefeedError, match="no column id") as raised:
        location = "jdbc:postgresql://db/shop?user=u&password=s3cret#public.t"
        read_extract(read, dataset, location)
    assert "s3cret" not in raised.value.detail
    assert "db/shop" in raised.value.detail
