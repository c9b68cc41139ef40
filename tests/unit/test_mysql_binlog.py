"""What real servers sent, decoded: every way of decoding gives the same, and the right rows."""

from __future__ import annotations

import json
import random
import resource
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from changefeed.core import log_form
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Change, ChangeBatch, Ddl, Event, Flush, SchemaChange, Truncate
from changefeed.core.schema import Column, TableName
from changefeed.sources.mysql.binlog import EventType
from changefeed.sources.mysql.transactions import Assembler
from changefeed.sources.mysql.wire import EventBytes
from tests.helpers.mysql_recordings import FLAVORS, SOURCE, Described, Recording, changes

#: So that every row is decoded by columns, or every row by itself.
BY_COLUMNS, BY_ROWS = 0, 1 << 40


@pytest.fixture(params=FLAVORS)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording.load(request.param)


def test_both_decoders_give_the_same_changes(recording: Recording, tmp_path: Path) -> None:
    columns = changes(list(recording.replay(tmp_path, small=BY_COLUMNS)))
    rows = changes(list(recording.replay(tmp_path, small=BY_ROWS)))
    assert len(columns) > 2500
    assert columns == rows


def test_the_changes_lead_to_the_rows_that_the_server_has(
    recording: Recording, tmp_path: Path
) -> None:
    state = _applied(list(recording.replay(tmp_path)))
    for name, schema in recording.schemas.items():
        printed = recording.rows[name.name]
        expected = [
            {c.name: _log_value(c, row.get(c.name), recording.flavor) for c in schema.columns}
            for row in printed
        ]
        found = [{c.name: row[c.name] for c in schema.columns} for row in state[name]]
        assert len(expected) > 1
        assert _sorted(found) == _sorted(expected), name


def test_the_columns_are_in_the_neutral_log_form(recording: Recording, tmp_path: Path) -> None:
    for flush in recording.replay(tmp_path):
        for event in flush.events:
            if isinstance(event, ChangeBatch):
                assert event.rows.schema == event.schema.log_schema()
                for place, column in enumerate(event.schema.columns):
                    assert not log_form.problem(column, event.rows.column(f"a{place}"))


@pytest.mark.parametrize("chunk", [997, 70_001])
def test_pieces_of_the_network_do_not_matter(
    recording: Recording, tmp_path: Path, chunk: int
) -> None:
    whole = list(recording.replay(tmp_path))
    pieces = list(recording.replay(tmp_path, chunk=chunk))
    assert len(pieces) > len(whole)
    assert changes(pieces) == changes(whole)
    assert _others(pieces) == _others(whole)
    assert pieces[-1].frontier == whole[-1].frontier


def test_a_large_transaction_goes_over_the_disk_and_stays_the_same(
    recording: Recording, tmp_path: Path
) -> None:
    whole = list(recording.replay(tmp_path))
    small = list(recording.replay(tmp_path, batch_bytes=500))
    assert any(flush.frontier is None for flush in small)
    assert changes(small) == changes(whole)
    assert _others(small) == _others(whole)
    assert _commits(small) == _commits(whole)
    assert not list((tmp_path / "spool").iterdir())


def test_places_rise_and_every_flush_ends_at_its_last_commit(
    recording: Recording, tmp_path: Path
) -> None:
    flushes = list(recording.replay(tmp_path, chunk=5_003))
    positions = [position for flush in flushes for position in flush.commits.position]
    assert len(positions) > 20
    assert positions == sorted(set(positions))
    for flush in flushes:
        assert flush.frontier is not None
        if flush.commits.position:
            assert flush.frontier.position >= flush.commits.position[-1]
    sequences = [change.seq for change in changes(flushes)]
    assert len(set(sequences)) == len(sequences)


def test_a_restart_at_any_frontier_goes_on_where_it_was(
    recording: Recording, tmp_path: Path
) -> None:
    described = Described(recording.schemas)
    whole = list(recording.replay(tmp_path, chunk=20_011, described=described))
    everything = changes(whole)
    for place, flush in enumerate(whole[:-1]):
        state = Described(recording.schemas)
        state.latest = _latest(whole[: place + 1])
        # Prepared transactions outlive a restart, what is in the spool does not.
        again = list(recording.replay(tmp_path, start=flush.frontier, described=state))
        assert flush.frontier is not None
        rest = [change for change in everything if change.seq > flush.frontier.seq]
        assert [_without_time(c) for c in changes(again)] == [_without_time(c) for c in rest]


def test_ddl_between_changes_is_announced_before_the_first_row_of_the_new_shape(
    recording: Recording, tmp_path: Path
) -> None:
    items = TableName(SOURCE, "rec", "items")
    events = [e for flush in recording.replay(tmp_path) for e in flush.events]
    shapes = [e for e in events if isinstance(e, SchemaChange)]
    assert [[c.name for c in e.new.columns] for e in shapes] == [
        ["id", "name", "n", "note"],
        ["id", "name", "n", "note", "flag"],  # the next row shows its place
        ["id", "flag", "name", "n", "note"],
        ["id", "flag", "title", "n", "note"],
    ]
    assert [e.rewritten for e in shapes] == [False, True, False, False]
    assert [e.renamed for e in shapes if e.renamed] == [(("name", "title"),)]
    assert [e.new.table for e in shapes] == [items] * 4
    assert shapes[-1].new.fingerprint() == recording.schemas[items].fingerprint()
    last = -1
    for event in events:
        if isinstance(event, SchemaChange):
            assert event.seq > last
        elif isinstance(event, ChangeBatch) and event.schema.table == items:
            first = event.rows.column("seq")[0].as_py()
            known = [s for s in shapes if s.seq < first]
            if known:
                assert event.schema.fingerprint() == known[-1].new.fingerprint()
            last = event.rows.column("seq")[-1].as_py()


def test_several_writes_of_a_key_are_one_change(recording: Recording, tmp_path: Path) -> None:
    found = changes(list(recording.replay(tmp_path)))
    [at] = {c.at for c in found if c.after and c.after.get("id") == 3001}
    together = [c for c in found if c.at == at and c.table.name == "items" and c.last]
    assert [(c.op, (c.after or {}).get("id"), (c.after or {}).get("n")) for c in together] == [
        ("c", 3000, 10),
        ("u", 2, 11),
    ]
    [update] = [c for c in together if c.op == "u"]
    assert update.before is not None and update.before["n"] == 2
    gone = [c for c in found if c.at == at and (c.after or c.before or {}).get("id") == 3001]
    assert gone and not any(c.last for c in gone)


def test_prepared_transactions_appear_when_they_are_decided(
    recording: Recording, tmp_path: Path
) -> None:
    flushes = list(recording.replay(tmp_path, chunk=1_009))
    found = [c for c in changes(flushes) if c.table.name == "pairs"]
    six = [c for c in found if (c.after or {}).get("a") == 6 and c.last]
    assert [(c.op, (c.after or {})["v"]) for c in six] == [("c", 66)]
    # The transaction that was rolled back had deleted all rows.
    five = [c for c in found if (c.before or {}).get("a") == 5]
    assert five == []
    assert [c.op for c in found if (c.after or {}).get("a") == 8] == ["c"]


def test_a_prepared_transaction_is_dropped_when_its_decision_is_durable(
    recording: Recording, tmp_path: Path
) -> None:
    assembler = recording.assembler(tmp_path)
    for place in recording.events():
        list(assembler.take(place) or ())
    kept = list((tmp_path / "kept" / "xa").iterdir())
    assert len(kept) == 2
    assembler.acknowledged(f"{0:020d}")
    assert len(list((tmp_path / "kept" / "xa").iterdir())) == 2
    assembler.acknowledged(assembler.frontier.position)
    assert list((tmp_path / "kept" / "xa").iterdir()) == []


def test_a_transaction_that_was_prepared_before_the_begin_is_no_silent_loss(
    recording: Recording, tmp_path: Path
) -> None:
    """Its rows were sent with the PREPARE, which this stream never read."""
    assembler = recording.assembler(tmp_path / "whole")
    kept = tmp_path / "whole" / "kept" / "xa"
    for place in recording.events():
        list(assembler.take(place) or ())
        if kept.exists() and assembler.idle:
            break
    start = assembler.frontier
    described = Described(recording.schemas)
    with pytest.raises(ChangefeedError, match="was prepared before the binlog was read") as refused:
        list(recording.replay(tmp_path / "fresh", start=start, described=described))
    assert refused.value.code.number == "CF2103"


def test_a_table_that_joins_behind_a_prepare_is_read_again(
    recording: Recording, tmp_path: Path
) -> None:
    """And no other: the rows of the prepared transaction were not kept for it."""
    assembler = recording.assembler(tmp_path)
    assembler.watch(recording.tables - {("rec", "pairs")})
    found: list[Event] = []
    for place in recording.events():
        for flush in (*(assembler.take(place) or ()), *assembler.flush()):
            found += flush.events
        if (tmp_path / "kept" / "xa").exists():
            assembler.watch(recording.tables)
    moved = [e for e in found if isinstance(e, SchemaChange) and e.moved]
    assert {e.new.table.name for e in moved} == {"pairs"}
    assert "XA transaction" in moved[0].why


def test_numbers_of_mariadb_that_go_back_are_no_silent_loss(tmp_path: Path) -> None:
    """Without gtid_strict_mode a server may write a transaction of a lower number."""
    recording = Recording.load("mariadb")
    assembler = recording.assembler(tmp_path)

    def read_all() -> None:
        for place in recording.events():
            list(assembler.take(place) or ())

    read_all()
    with pytest.raises(ChangefeedError, match="comes after transactions of higher numbers"):
        read_all()


def test_a_truncate_comes_between_the_rows_around_it(recording: Recording, tmp_path: Path) -> None:
    flushes = list(recording.replay(tmp_path))
    [truncate] = [e for f in flushes for e in f.events if isinstance(e, Truncate)]
    assert truncate.schema.table.name == "pairs"
    found = [c for c in changes(flushes) if c.table.name == "pairs"]
    before = {(c.after or {}).get("a") for c in found if c.seq < truncate.seq}
    assert before == {None, 1, 2, 9}
    assert truncate.seq not in {c.seq for c in changes(flushes)}


def test_statements_of_ddl_come_before_what_they_cause(
    recording: Recording, tmp_path: Path
) -> None:
    flushes = list(recording.replay(tmp_path))
    events = [e for flush in flushes for e in flush.events]
    told = [e for e in events if isinstance(e, Ddl)]
    assert [(e.kind, e.table.name) for e in told] == [
        *(("CREATE", name) for name in ("alltypes", "items", "pairs", "plain", "ignored", "wide")),
        *[("ALTER", "items")] * 3,
        ("TRUNCATE", "pairs"),
    ]
    assert told[6].statement == "ALTER TABLE items ADD COLUMN note varchar(10)"
    shapes = [e for e in events if isinstance(e, SchemaChange)]
    [truncate] = [e for e in events if isinstance(e, Truncate)]
    caused: list[SchemaChange | Truncate] = [*shapes, truncate]
    for statement, after in zip(told[6:], [*told[7:], None], strict=True):
        its = [e for e in caused if statement.seq < e.seq < (after.seq if after else 1 << 40)]
        assert its
        assert all(statement.at <= e.at for e in its)
    assert min(e.seq for e in caused) > told[6].seq
    items = [c.seq for c in changes(flushes) if c.table.name == "items"]
    assert min(items) < told[6].seq < max(items)
    commits = {
        position: (wall, logical)
        for flush in flushes
        for position, wall, logical in zip(
            flush.commits.position, flush.commits.wall, flush.commits.logical, strict=True
        )
    }
    assert all(commits[e.position] == (e.at.wall, e.at.logical) for e in told)


def test_a_restart_tells_a_statement_once(recording: Recording, tmp_path: Path) -> None:
    described = Described(recording.schemas)
    whole = list(recording.replay(tmp_path, chunk=20_011, described=described))
    told = [e for flush in whole for e in flush.events if isinstance(e, Ddl)]
    assert len(whole) > 2
    for place, flush in enumerate(whole[:-1]):
        state = Described(recording.schemas)
        state.latest = _latest(whole[: place + 1])
        assert flush.frontier is not None
        again = recording.replay(tmp_path, start=flush.frontier, described=state)
        found = [e.position for f in again for e in f.events if isinstance(e, Ddl)]
        assert found == [e.position for e in told if e.position > flush.frontier.position]


def test_statements_about_the_other_tables_of_a_watched_database_are_told(
    recording: Recording, tmp_path: Path
) -> None:
    """A feed of the whole database may take them up later."""
    assembler = recording.assembler(tmp_path)
    assembler.watch(frozenset({("rec", "plain")}))
    events = []
    for place in recording.events():
        for flush in (*(assembler.take(place) or ()), *assembler.flush()):
            events += flush.events
    told = [(e.kind, e.table.name) for e in events if isinstance(e, Ddl)]
    made = ("alltypes", "items", "pairs", "plain", "ignored", "wide")
    assert told[:6] == [("CREATE", name) for name in made]
    assert told[6:] == [("ALTER", "items")] * 3 + [("TRUNCATE", "pairs")]
    assert not any(isinstance(e, SchemaChange | Truncate) for e in events)


def query_event(
    text: str, database: str = "rec", seconds: int = 1_700_000_000
) -> tuple[bytes, int, int]:
    """A QUERY event of that time, as an inbox returns it."""
    name = database.encode()
    body = struct.pack("<IIBHH", 1, 0, len(name), 0, 0) + name + b"\0" + text.encode()
    size = 19 + len(body) + 4
    data = struct.pack("<IBIIIH", seconds, EventType.QUERY, 1, size, size, 0) + body
    return data + struct.pack("<I", zlib.crc32(data)), 0, size


@pytest.mark.parametrize("gone", ["DROP TABLE pairs, plain", "DROP DATABASE rec"])
def test_a_table_that_comes_again_is_read_again_whatever_dropped_it(
    recording: Recording, tmp_path: Path, gone: str
) -> None:
    """``IF NOT EXISTS`` made a table only where the binlog dropped it before."""
    assembler = recording.assembler(tmp_path)
    for place in recording.events():
        list(assembler.take(place) or ())
    list(assembler.flush())

    def rewritten(*texts: str) -> list[str]:
        flushes = [f for text in texts for f in assembler.take(query_event(text)) or ()]
        events = [e for flush in (*flushes, *assembler.flush()) for e in flush.events]
        return [e.new.table.name for e in events if isinstance(e, SchemaChange) and e.rewritten]

    make = "CREATE TABLE IF NOT EXISTS plain (a int PRIMARY KEY)"
    assert rewritten(make) == []
    assert rewritten(gone, make) == ["plain"]
    assert rewritten(make) == []


def test_tables_that_nobody_watches_move_the_place_and_nothing_else(
    recording: Recording, tmp_path: Path
) -> None:
    whole = list(recording.replay(tmp_path))
    plain = {t: s for t, s in recording.schemas.items() if t.name == "plain"}
    some = replace(recording, schemas=plain)
    flushes = list(some.replay(tmp_path / "some"))
    assert {c.table.name for c in changes(flushes)} == {"plain"}
    assert flushes[-1].frontier is not None and whole[-1].frontier is not None
    assert flushes[-1].frontier.position <= whole[-1].frontier.position


@pytest.mark.parametrize("seed", range(3))
def test_changed_bytes_are_an_error_and_never_memory(
    recording: Recording, tmp_path: Path, seed: int
) -> None:
    """Bytes are changed behind the checksum's back: it is computed again."""
    chosen = random.Random(seed)
    packets = _packets(recording.data)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20), hard))
    outcomes = set()
    try:
        for attempt in range(8):
            mutated = [bytearray(packet) for packet in packets]
            if not attempt:  # of the others, some may hit values and still be read
                _break_table_map(mutated)
            for _ in range(chosen.randint(1, 3)):
                packet = chosen.choice(mutated)
                _mutate(packet, chosen)
                _mend_checksum(packet)
            data = b"".join(mutated)
            small = chosen.choice([BY_COLUMNS, BY_ROWS, 4096])
            try:
                for flush in recording.replay(tmp_path, data=data, small=small):
                    outcomes |= {type(e).__name__ for e in flush.events if _unreadable(e)}
                outcomes.add("read")
            except ChangefeedError as error:
                assert error.code in ("CF2105", "CF2101", "CF2103", "CF2003", "CF1303"), error
                outcomes.add(str(error.code))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert outcomes & {"SchemaChange", "CF2105"}


def _unreadable(event: Event) -> bool:
    return isinstance(event, SchemaChange) and event.unreadable


def test_a_changed_byte_is_noticed_by_the_checksum(recording: Recording, tmp_path: Path) -> None:
    packets = _packets(recording.data)
    large = max(range(len(packets)), key=lambda i: len(packets[i]))
    packet = bytearray(packets[large])
    packet[len(packet) // 2] ^= 1
    packets[large] = bytes(packet)
    with pytest.raises(ChangefeedError) as error:
        list(recording.replay(tmp_path, data=b"".join(packets)))
    assert error.value.code == "CF2101"


# ------------------------------------------------------------------------------------ tools


def _others(flushes: list[Flush]) -> list[tuple[Any, ...]]:
    return [
        (type(e).__name__, e.at, e.seq)
        for f in flushes
        for e in f.events
        if not isinstance(e, ChangeBatch)
    ]


def _commits(flushes: list[Flush]) -> list[tuple[Any, ...]]:
    return [
        row
        for f in flushes
        for row in zip(
            f.commits.wall, f.commits.logical, f.commits.position, f.commits.xid, strict=True
        )
    ]


def _latest(flushes: list[Flush]) -> dict[TableName, Any]:
    found = {}
    for flush in flushes:
        for event in flush.events:
            if isinstance(event, ChangeBatch):
                found[event.schema.table] = event.schema
            elif isinstance(event, SchemaChange):
                found[event.new.table] = event.new
    return found


def _without_time(change: Change) -> Change:
    return replace(change, at=change.at.__class__(0))


def _applied(flushes: list[Flush]) -> dict[TableName, list[dict[str, Any]]]:
    """The tables after all events, by key; those without one as bags of rows."""
    state: dict[TableName, dict[Any, list[dict[str, Any]]]] = {}
    names: dict[TableName, Any] = {}
    ordered: list[tuple[int, Any, Any]] = []
    for flush in flushes:
        for event in flush.events:
            if isinstance(event, ChangeBatch):
                ordered += [(c.seq, event.schema, c) for c in event.changes() if c.last]
            else:
                ordered.append((event.seq, None, event))
    for _, schema, event in sorted(ordered, key=lambda some: some[0]):
        if isinstance(event, Truncate):
            state[event.schema.table] = {}
        elif isinstance(event, SchemaChange):
            _reshape(state, event)
        elif not isinstance(event, Ddl):
            rows = state.setdefault(schema.table, {})
            names[schema.table] = schema
            _apply(rows, schema, event)
    return {table: [r for some in rows.values() for r in some] for table, rows in state.items()}


def _reshape(state: dict[TableName, dict[Any, list[dict[str, Any]]]], event: SchemaChange) -> None:
    """What the server does to rows that are there: here a column is added or renamed."""
    old = {c.name for c in event.old.columns}
    new = [c.name for c in event.new.columns]
    for rows in state.get(event.new.table, {}).values():
        for row in rows:
            if "name" in old and "title" in new:
                row["title"] = row.pop("name")
            for name in new:
                row.setdefault(name, 5 if name == "flag" else None)


def _apply(rows: dict[Any, list[dict[str, Any]]], schema: Any, change: Change) -> None:
    def key(row: dict[str, Any]) -> Any:
        return tuple(row[c.name] for c in schema.key_columns)

    if change.op in ("u", "d"):
        held = rows[key(change.before or {})]
        assert held, change
        if change.op == "u" and not schema.keyless:
            rows[key(change.before or {})] = []
        else:
            held.pop()
    if change.op in ("u", "c") and change.after is not None:
        rows.setdefault(key(change.after), []).append(dict(change.after))


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def _log_value(column: Column, printed: str | None, flavor: str) -> Any:
    """What the server prints in the neutral form, by other means than the decoders'."""
    if printed is None:
        return None
    kind = column.kind
    if kind == "bytes" and column.type_name.startswith("bit("):
        bits = int(column.type_name[4:-1])
        return f"\\x{int(printed, 16):0{(bits + 7) // 8 * 2}x}"
    if kind == "bytes":
        return "\\x" + printed.lower()
    if kind == "bool":
        return int(printed, 16) == 1
    if column.physical.startswith("int"):
        return int(printed)
    if kind == "float32":
        return str(Decimal(printed).normalize()) if "e" not in printed else printed
    if kind == "float64":
        return {"-1e300": "-1e+300"}.get(printed, printed)
    if kind in ("date", "timestamp", "timestamptz"):
        if printed.startswith("0000") or "-00" in printed:
            return None
        text = printed.replace(" ", "T")
        return text + "Z" if kind == "timestamptz" else text
    return printed


def _packets(data: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(data):
        length = int.from_bytes(data[place : place + 3], "little")
        found.append(data[place : place + 4 + length])
        place += 4 + length
    return found


def _mutate(packet: bytearray, chosen: random.Random) -> None:
    """Somewhere behind the event's header; the length in the header stays."""
    if len(packet) <= 30:
        return
    place = chosen.randrange(5 + 19, len(packet) - 4)
    way = chosen.randrange(3)
    if way == 0:
        packet[place] = chosen.randrange(256)
    elif way == 1:
        packet[place] = chosen.choice([0, 0x7F, 0xFA, 0xFC, 0xFD, 0xFE, 0xFF])
    else:
        width = min(8, len(packet) - 4 - place)
        packet[place : place + width] = bytes([0xFF]) * width


def _break_table_map(packets: list[bytearray]) -> None:
    """Lengths in the middle of the longest description of a table become the highest there are."""
    described = [
        packet for packet in packets if len(packet) > 30 and packet[9] == EventType.TABLE_MAP
    ]
    packet = max(described, key=len)
    place = len(packet) // 4
    packet[place : place + 200] = bytes([0xFF]) * 200
    _mend_checksum(packet)


def _mend_checksum(packet: bytearray) -> None:
    import zlib

    packet[-4:] = zlib.crc32(packet[5:-4]).to_bytes(4, "little")


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def test_short_transactions_as_a_whole_are_what_their_events_are(
    recording: Recording, tmp_path: Path
) -> None:
    for chunk in (1_009, 20_011, 1 << 20):
        one, other = (
            list(recording.replay(tmp_path / f"{chunk}{short}", chunk=chunk, short=short))
            for short in (True, False)
        )
        assert [flush.frontier for flush in one] == [flush.frontier for flush in other]
        assert [flush.commits for flush in one] == [flush.commits for flush in other]
        assert [_plain(flush) for flush in one] == [_plain(flush) for flush in other]


def test_short_transactions_are_taken_as_a_whole(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[EventBytes] = []
    by_events = Assembler.take

    def counted(assembler: Assembler, place: EventBytes) -> Iterator[Flush] | None:
        taken.append(place)
        return by_events(assembler, place)

    monkeypatch.setattr(Assembler, "take", counted)
    numbers = {}
    for short in (True, False):
        taken.clear()
        list(recording.replay(tmp_path / str(short), short=short))
        numbers[short] = len(taken)
    # Others come first after a change of their table, which is then not known.
    events = 4 if recording.flavor == "mariadb" else 5
    assert numbers[False] - numbers[True] >= 10 * events


def _plain(flush: Flush) -> list[object]:
    """The events of a flush, with batches as their rows."""
    return [list(e.changes()) if isinstance(e, ChangeBatch) else e for e in flush.events]


@pytest.mark.parametrize("seed", range(12))
def test_damage_is_met_in_short_transactions_as_in_their_events(
    recording: Recording, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    data = bytearray(recording.data)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)

    def outcome(short: bool) -> object:
        flushes: list[object] = []
        try:
            for flush in recording.replay(tmp_path / str(short), data=bytes(data), short=short):
                flushes.append((flush.frontier, _plain(flush)))
        except ChangefeedError as error:
            flushes.append((error.code, error.message, error.detail))
        return flushes

    assert outcome(True) == outcome(False)


def test_a_witness_and_a_repeated_transaction_are_met_in_short_transactions(
    recording: Recording, tmp_path: Path
) -> None:
    met: dict[bool, list[tuple[object, ...]]] = {}
    for short in (True, False):
        told: list[tuple[object, ...]] = []
        list(recording.replay(tmp_path, short=short, met=lambda *a, told=told: told.append(a)))
        met[short] = told
    assert met[True] == met[False] and len(met[True]) > 20
