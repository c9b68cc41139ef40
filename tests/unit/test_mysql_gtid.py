"""GTID sets, and places in MySQL's log as text that sorts."""

from __future__ import annotations

import uuid

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.mysql.gtid import GtidSet, MariaGtid, file_position, parse

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_a_set_is_printed_as_the_server_prints_it() -> None:
    given = f"{B}:1-3:11,\n{A}:5"
    assert GtidSet.parse(given).text() == f"{A}:5,{B}:1-3:11"
    assert GtidSet.parse(given).position == f"{5:020d}"


def test_a_transaction_closes_a_gap() -> None:
    held = GtidSet.parse(f"{A}:1-3:5")
    server = uuid.UUID(A).bytes
    assert (server, 4) not in held
    held.add(server, 4)
    held.add(server, 6)
    assert held.text() == f"{A}:1-6"
    assert held.position == f"{6:020d}"
    held.add(server, 6)
    assert held.position == f"{6:020d}"


def test_places_sort_as_text_in_the_order_of_the_log() -> None:
    held, server = GtidSet(), uuid.UUID(A).bytes
    places = []
    for number in range(1, 120):
        held.add(server, number)
        places.append(held.position)
    assert places == sorted(set(places))
    assert file_position("binlog.000009", 9_999) < file_position("binlog.000010", 4)
    assert file_position("a.999999", 4) < file_position("a.1000000", 4)


def test_the_encoded_set_excludes_the_end_of_an_interval() -> None:
    encoded = GtidSet.parse(f"{A}:1-3").encoded()
    assert encoded[:8] == (1).to_bytes(8, "little")
    assert encoded[8:24] == uuid.UUID(A).bytes
    assert encoded[24:] == b"".join(n.to_bytes(8, "little") for n in (1, 1, 4))


def test_mariadb_has_a_place_for_each_domain() -> None:
    held = MariaGtid.parse("1-1-7,0-2-25")
    assert held.text() == "0-2-25,1-1-7"
    assert held.position == f"{32:020d}"
    held.add(0, 3, 26)
    held.add(0, 3, 20)
    assert held.text() == "0-3-26,1-1-7"
    assert held.covers(1, 7) and not held.covers(1, 8) and not held.covers(2, 1)


@pytest.mark.parametrize(
    ("flavor", "text"),
    [
        ("mysql", "0-1-25"),
        ("mysql", A),
        ("mysql", f"{A}:0-3"),
        ("mysql", f"{A}:5-3"),
        ("mysql", f"{A}:1-{1 << 63}"),
        ("mysql", f"{A}:x"),
        ("mariadb", f"{A}:1-3"),
        ("mariadb", "0-1"),
    ],
)
def test_what_is_no_set_is_refused(flavor: str, text: str) -> None:
    with pytest.raises(ChangefeedError) as error:
        parse(flavor, text)
    assert error.value.code == "CF2105"


def test_a_file_without_a_number_is_refused() -> None:
    with pytest.raises(ChangefeedError):
        file_position("binlog", 4)
