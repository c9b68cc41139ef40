"""The fingerprint finds what is wrong with a copy, and only that."""

from __future__ import annotations

import pytest

from changefeed.core.clock import Timestamp
from tests.nemesis.fingerprint import Document, Look, check_documents, check_end, check_instant
from tests.nemesis.ledger import Cause, Ledger, Row, Rows, Table, by_key

KEYED = Table("keyed", looked_up=("long",))
SHAPED = Table("shaped", steady=("id",))
COUNTED = Table("counted", key=())


def keyed(*rows: Row) -> Rows:
    return by_key(KEYED, rows)


def a(v: int, **more: object) -> Row:
    return {"id": 1, "v": v, **more}


def b(v: int) -> Row:
    return {"id": 2, "v": v}


@pytest.fixture
def ledger() -> Ledger:
    """Four commits at 100, 200 (known to be done at 230), 300 and 400."""
    made = Ledger([KEYED, SHAPED, COUNTED])
    made.columns = {"keyed": ("id", "v", "long"), "shaped": ("id", "c"), "counted": ("v",)}
    made.note({"keyed": keyed(a(1), b(1)), "shaped": {}}, span=(100, 100))
    made.note({"keyed": keyed(a(2, long="x"), b(1))}, span=(200, 230))
    made.note({"keyed": keyed(a(2, long="x"))}, span=(300, 300))
    made.note({"shaped": by_key(SHAPED, [{"id": 1, "c": 1}])}, Cause.DDL, span=(400, 400))
    return made


def at(wall: int, *rows: Row, **tables: Rows) -> Look:
    return Look(Timestamp(wall), {"keyed": keyed(*rows), **tables})


@pytest.mark.parametrize(
    "look",
    [
        at(100, a(1), b(1)),
        at(199, b(1), a(1)),
        at(215, a(1), b(1)),  # committed at 200, in the log perhaps a little later
        at(215, a(2), b(1)),
        at(230, a(2, long="looked up"), b(1)),
        at(300, a(2), shaped={}),
        at(450, a(2), shaped=by_key(SHAPED, [{"id": 1, "c": "any"}])),
    ],
)
def test_what_the_source_had_passes(ledger: Ledger, look: Look) -> None:
    assert check_instant(ledger, look) == []


@pytest.mark.parametrize(
    ("look", "word"),
    [
        (at(230, a(1), b(1)), "'v': 1"),  # stale
        (at(199, a(2), b(1)), "'v': 2"),  # too new
        (at(230, a(2)), "[2]: the copy has None"),  # missing
        (at(300, a(2), b(1)), "the source had None"),  # left over
        (at(230, a(2), b(1), b(1)), "#2"),  # twice
        (at(350, a(2), shaped={"[1]": {"id": 1}}), "shaped"),  # of two instants
    ],
)
def test_what_it_had_not_is_told(ledger: Ledger, look: Look, word: str) -> None:
    [failure] = check_instant(ledger, look)
    assert word in failure and str(look.at) in failure


def test_the_end_is_exact(ledger: Ledger) -> None:
    shaped: Rows = {"[1]": {"id": 1, "c": 1, "_seq": 7}}
    true = {"keyed": keyed(a(2, long="x")), "shaped": shaped}
    assert check_end(ledger, true) == []
    [failure] = check_end(ledger, true | {"keyed": keyed(a(2, long="another"))})
    assert "'another'" in failure and "'x'" in failure
    stale: dict[str, Rows] = {"shaped": {"[1]": {"id": 1, "c": 2}}}
    assert check_end(ledger, stale, whole=False) == [] != check_end(ledger, stale)


def test_copies_count() -> None:
    ledger = Ledger([COUNTED])
    ledger.columns = {"counted": ("v",)}
    row: Row = {"v": 1}
    ledger.note({"counted": by_key(COUNTED, [row, row])})
    assert check_end(ledger, {"counted": by_key(COUNTED, [row, row])}) == []
    for copies in (1, 3):
        assert len(check_end(ledger, {"counted": by_key(COUNTED, [row] * copies)})) == 1


def documents(*found: tuple[int, Row]) -> list[Document]:
    return [Document(KEYED.key_of(row), version, row) for version, row in found]


@pytest.mark.parametrize(
    ("resolved", "found"),
    [
        (100, documents((100, a(1)), (100, b(1)))),
        (100, documents((200, a(2)), (100, b(1)))),  # later than resolved
        (100, documents((200, a(2)))),  # the other was deleted later than resolved
        (300, documents((200, a(2)))),
    ],
)
def test_documents_that_were_rows_pass(
    ledger: Ledger, resolved: int, found: list[Document]
) -> None:
    assert check_documents(ledger, "keyed", Timestamp(resolved), found) == []


@pytest.mark.parametrize(
    ("resolved", "found"),
    [
        (100, documents((100, b(1)))),  # missing
        (100, documents((230, a(1)), (100, b(1)))),  # not what that version was
        (230, documents((100, a(1)), (100, b(1)))),  # stale
        (300, documents((200, a(2)), (100, b(1)))),  # left over
    ],
)
def test_other_documents_are_told(ledger: Ledger, resolved: int, found: list[Document]) -> None:
    [failure] = check_documents(ledger, "keyed", Timestamp(resolved), found)
    assert failure.startswith(f"keyed: at resolved {Timestamp(resolved)}")


def test_a_document_before_a_truncate_of_its_transaction_may_be_there(ledger: Ledger) -> None:
    ledger.note({"keyed": keyed(a(5))}, Cause.TRUNCATE, span=(500, 500))
    found = documents((500, a(5)), (500, {"id": 7, "v": 4}))
    assert check_documents(ledger, "keyed", Timestamp(400), found) == []
    assert len(check_documents(ledger, "keyed", Timestamp(500), found)) == 1


def test_a_document_that_comes_back_after_a_truncate_may_be_out(ledger: Ledger) -> None:
    ledger.note({"keyed": keyed(a(5))}, Cause.TRUNCATE, span=(500, 500))
    assert check_documents(ledger, "keyed", Timestamp(400), []) == []
    assert len(check_documents(ledger, "keyed", Timestamp(500), [])) == 1
