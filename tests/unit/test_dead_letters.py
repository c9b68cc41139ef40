"""Rows that are refused for themselves: found by halves, kept once, and counted."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.catalog import Catalog, JobSpec, Lease
from changefeed.catalog.model import RowRepair, TableProgress
from changefeed.core.clock import SYSTEM_CLOCK, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.halves import by_halves, sifted
from changefeed.core.log_rows import delete_rows, scan_rows
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.core.types import Kind, LogicalType
from changefeed.feeds.dead_letters import ROW_BYTES, LetterKeeper, letter_of
from changefeed.options import Options
from changefeed.options.types import Share

T = TableName("shop", "public", "t")
REFUSED = ChangefeedError(Code.VALUE_NOT_ENCODABLE, "a value of column b does not fit")
AT = Timestamp(1_700_000_000_000_000_000)


def shape(*, keyless: bool = False) -> TableSchema:
    columns = (
        Column("a", "int", LogicalType(Kind.INT32)),
        Column("b", "text", LogicalType(Kind.TEXT)),
    )
    return TableSchema(T, columns, (0, 1) if keyless else (0,), keyless=keyless)


def rows(*values: tuple[int, str | None], at: Timestamp = AT, keyless: bool = False) -> pa.Table:
    schema = shape(keyless=keyless)
    columns = [
        pa.array(c, f.arrow) for c, f in zip(zip(*values, strict=True), schema.columns, strict=True)
    ]
    return scan_rows(schema, pa.table(columns, names=["a0", "a1"]), at)


def of_change(table: pa.Table, seq: int) -> pa.Table:
    """The same rows as rows of changes."""
    for name, value in (("op", "c"), ("seq", seq)):
        place = table.schema.get_field_index(name)
        values = pa.array([value] * table.num_rows, table.schema.field(name).type)
        table = table.set_column(place, table.schema.field(name), values)
    return table


@pytest.mark.parametrize("bad", [(), (0,), (9,), (3, 4), (0, 5, 9), tuple(range(10))])
@pytest.mark.parametrize("about_table", [False, True])
def test_each_refused_row_is_found_and_the_others_come_in_order(
    bad: tuple[int, ...], about_table: bool
) -> None:
    delivered: list[int] = []
    refused: list[int] = []

    def deliver(some: pa.Table) -> None:
        found = some["n"].to_pylist()
        if set(found) & set(bad):
            raise TableError(T, REFUSED) if about_table else REFUSED
        delivered.extend(found)

    table = pa.table({"n": list(range(10))})
    by_halves(table, deliver, lambda row, error: refused.extend(row["n"].to_pylist()))
    assert refused == list(bad)
    assert delivered == [n for n in range(10) if n not in bad]


def test_an_error_that_is_not_about_a_row_ends_the_search() -> None:
    tried: list[int] = []

    def deliver(some: pa.Table) -> None:
        tried.append(some.num_rows)
        raise ChangefeedError(Code.SINK_REFUSED_DATA, "the index is closed")

    with pytest.raises(ChangefeedError, match="closed"):
        by_halves(pa.table({"n": [1, 2]}), deliver, lambda row, error: pytest.fail("refused"))
    assert tried == [2]


@pytest.mark.parametrize("bad", [(), (0,), (9,), (3, 4), tuple(range(10))])
def test_rows_are_sifted_before_any_is_delivered(bad: tuple[int, ...]) -> None:
    def examine(some: pa.Table) -> None:
        if set(some["n"].to_pylist()) & set(bad):
            raise REFUSED

    rest, refused = sifted(pa.table({"n": list(range(10))}), examine)
    assert [place for place, _ in refused] == list(bad)
    assert {error for _, error in refused} <= {REFUSED}
    assert rest["n"].to_pylist() == [n for n in range(10) if n not in bad]


def test_what_a_letter_says() -> None:
    letter = letter_of(shape(), rows((7, 'x"y')), REFUSED)
    assert (letter.key, json.loads(letter.row)) == ("[7]", {"a": 7, "b": 'x"y'})
    assert (letter.code, letter.message, letter.op) == ("CF4001", REFUSED.message, "r")
    assert 'x"y' not in repr(letter) and "[7]" not in repr(letter), "neither key nor values"
    gone = letter_of(shape(), delete_rows(shape(), [(7,)], AT), REFUSED)
    assert (gone.key, gone.row, gone.op) == ("[7]", '{"a": 7}', "d")
    assert letter_of(shape(keyless=True), rows((7, "x"), keyless=True), REFUSED).keyless


def test_a_large_row_loses_its_large_values() -> None:
    letter = letter_of(shape(), rows((7, "x" * ROW_BYTES)), REFUSED)
    assert json.loads(letter.row) == {"a": 7, "b": "(65,538 characters were left out)"}


class Box:
    """A feed with dead letters in a state of its own."""

    def __init__(self, folder: Path, key: str | None = None, **options: str) -> None:
        self.catalog = Catalog.open(folder, key=key)
        table = TableProgress(T, "t")
        job = self.catalog.create_job(JobSpec("shop", ("t",), (table,), "f", "null://"))
        self.job = job.id
        lease = self.catalog.acquire_lease(job.id, "node", 600)
        assert lease is not None
        self.lease: Lease = lease
        typed = Options.from_dict({"on_row_error": "dead_letter", **options})
        self.letters = LetterKeeper(self.catalog, job.id, "f", self.lease, typed)

    def keep(self, table: pa.Table, *, delivered: int = 0) -> None:
        self.letters.keep(shape(), table, REFUSED, delivered=delivered)

    @property
    def kept(self) -> list[str]:
        return [f"{x.key} {x.op}" for x in self.catalog.dead_letters(self.job)]


def test_a_row_that_comes_again_is_the_same_letter(tmp_path: Path) -> None:
    box = Box(tmp_path)
    later = Timestamp(AT.wall + 1)
    for _ in range(2):
        box.keep(of_change(rows((1, "x")), 5))
        box.keep(of_change(rows((1, "y")), 6))
        box.keep(rows((1, "x")))
    box.keep(rows((1, "x"), at=later))
    assert box.kept == ["[1] c", "[1] c", "[1] r"]
    assert box.catalog.dead_letters(box.job)[-1].position == later
    assert box.catalog.dead_letter_counts() == {box.job: 3}
    events = box.catalog.events(box.job, kinds=["dead_letter"])
    assert [(e.text, e.times, e.table) for e in events] == [(REFUSED.message, 3, str(T))]


def test_the_limit_of_letters(tmp_path: Path) -> None:
    box = Box(tmp_path, dead_letter_limit="2")
    box.keep(rows((1, "x")))
    box.keep(rows((2, "x")))
    box.keep(rows((1, "x")))  # the same row
    with pytest.raises(ChangefeedError) as caught:
        box.keep(rows((3, "secret")))
    assert caught.value.code is Code.TOO_MANY_DEAD_LETTERS
    assert "2 rows of the feed were refused" in caught.value.message
    assert "dead_letter_limit is 2" in caught.value.message
    assert "secret" not in str(caught.value.fields())
    assert box.kept == ["[1] r", "[2] r"]
    assert box.catalog.discard_dead_letters(box.job, [], "ann") == 2
    box.keep(rows((3, "x")))
    assert box.kept == ["[3] r"]


def test_the_share_of_letters(tmp_path: Path) -> None:
    box = Box(tmp_path, dead_letter_share="10%")
    for n in range(10):
        box.keep(rows((n, "x")))  # too few to have a share
    box.keep(rows((10, "x")), delivered=200)
    with pytest.raises(ChangefeedError, match=r"12 of 112 rows .* dead_letter_share is 10%"):
        box.keep(rows((11, "x")), delivered=100)
    assert len(box.kept) == 11


def test_letters_go_when_their_rows_were_read_again(tmp_path: Path) -> None:
    box = Box(tmp_path)
    for n in (1, 2, 3):
        box.keep(rows((n, "x")))
    gone = delete_rows(shape(), [(4,)], AT)
    box.keep(gone)
    first, second, *_ = box.catalog.dead_letters(box.job)
    box.catalog.alter_job(box.job, repair={T: first_repair()}, letters=[first.id, second.id])
    (table,) = box.catalog.tables(box.job)
    box.keep(rows((2, "x")))  # it is refused again
    box.catalog.forget_delivered_letters(box.job, T, rescan=table.rescan, whole=None)
    assert box.kept == ["[2] r", "[3] r", "[4] d"]
    # A scan of all rows makes good what came before it, but for a delete.
    later = Timestamp(AT.wall + 1)
    box.keep(rows((3, "x"), at=later))
    box.catalog.forget_delivered_letters(box.job, T, rescan=table.rescan, whole=later)
    assert box.kept == ["[3] r", "[4] d"]


def first_repair() -> RowRepair:
    return RowRepair(wrong=((1,), (2,)))


def test_letters_follow_their_table_and_go_with_it(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.keep(rows((1, "x")))
    now = TableName("shop", "public", "u")
    box.catalog.alter_job(box.job, renamed={T: now})
    assert [x.table for x in box.catalog.dead_letters(box.job)] == [now]
    box.catalog.alter_job(box.job, drop=[now])
    assert box.kept == []
    box.keep(rows((1, "x")))
    box.catalog.delete_job(box.job)
    assert box.kept == []


def test_keys_and_rows_are_encrypted_by_the_key_of_the_state(tmp_path: Path) -> None:
    keys = [base64.b64encode(os.urandom(32)).decode() for _ in range(2)]
    place = tmp_path / "key"
    place.write_text(keys[0])
    box = Box(tmp_path / "state", key=f"${{file:{place}}}")
    box.keep(of_change(rows((424242, "Zq9value")), 5))

    def kept() -> bytes:
        return b"".join(file.read_bytes() for file in (tmp_path / "state").glob("state.db*"))

    assert b"Zq9value" not in kept() and b"424242" not in kept()
    place.write_text("\n".join(reversed(keys)))
    box.catalog.rotate_key()
    place.write_text(keys[1])
    (letter,) = box.catalog.dead_letters(box.job)
    assert (letter.key, json.loads(letter.row)["b"]) == ("[424242]", "Zq9value")
    box.catalog.close()


@pytest.mark.parametrize("text", ["0%", "101%", "5", "-1%", "x"])
def test_a_share_is_a_part_of_all(text: str) -> None:
    with pytest.raises(ValueError, match="share up to 100 %"):
        Share().read("dead_letter_share", text, SYSTEM_CLOCK)
    assert Share().read("dead_letter_share", " 0.5 %", SYSTEM_CLOCK) == 0.005
