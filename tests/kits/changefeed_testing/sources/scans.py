"""Cases about descriptions and snapshots."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.log_form import problem
from changefeed.core.schema import KeyRange
from changefeed.core.unread import joined
from changefeed.sources.base import KeySet, Watch
from changefeed_testing.sources.copy import Copy, at_or_below, batches, rows_of, scan
from changefeed_testing.sources.harness import SourceHarness, Type
from changefeed_testing.sources.reader import capturing

TABLE = "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, v VARCHAR(200))"


def refused(code: Code, call: Callable[[], object]) -> ChangefeedError:
    """The error that a call raises.

    Raises:
        AssertionError: the call returned, or raised another error.
    """
    try:
        call()
    except ChangefeedError as error:
        assert error.code is code, f"{error.code.number} {error.message}"
        return error
    raise AssertionError(f"{code.number} was expected")


def describes_tables(harness: SourceHarness) -> None:
    """Descriptions, lists and patterns agree, and an unknown table is CF1101."""
    harness.execute(
        TABLE,
        "CREATE TABLE pairs (b INT NOT NULL, a VARCHAR(10) NOT NULL, c INT, PRIMARY KEY (a, b))",
        "CREATE TABLE bare (x INT)",
    )
    source = harness.source()
    pairs = source.describe(None, "pairs")
    assert [c.name for c in pairs.columns] == ["b", "a", "c"]
    assert [c.name for c in pairs.key_columns] == ["a", "b"]
    assert [c.nullable for c in pairs.columns] == [False, False, True]
    bare = source.describe(None, "bare")
    assert bare.keyless and bare.key == (0,)
    schema = pairs.table.schema
    assert source.describe(schema, "pairs") == pairs
    listed = {info.name: info for info in source.tables()}
    names = {source.describe(None, name).table for name in ("t", "pairs", "bare")}
    assert names <= listed.keys()
    assert listed[pairs.table].key == ("a", "b")
    assert names <= set(source.matching(schema))
    assert source.matching(schema, ["pa*", "b?re"]) == sorted([bare.table, pairs.table])
    assert source.describe_tables([pairs.table])[pairs.table] == pairs
    refused(Code.NAME_UNKNOWN, lambda: source.describe(None, "pears"))
    gone = type(pairs.table)(pairs.table.source, schema, "pears")
    assert source.describe_tables([gone, bare.table]) == {bare.table: bare}


def ids_are_of_all_columns_or_of_none(harness: SourceHarness) -> None:
    """All columns have an id or none has: with a mix, a column could be taken for another one."""
    harness.execute("CREATE TABLE t (id INT NOT NULL PRIMARY KEY, a INT, b INT)")
    schema = harness.source().describe(None, "t")
    ids = [column.column_id for column in schema.columns]
    assert len(set(ids)) == len(ids) if any(ids) else set(ids) == {0}
    located = harness.source().locate([schema.table], [])
    assert (located is None) == (schema.table_id == 0)
    if located is not None:
        assert located.ids == {schema.table: schema.table_id}


def a_scan_in_parts_is_the_table(harness: SourceHarness) -> None:
    """The parts together hold each row once; they are pickled, and several threads read them."""
    harness.execute(TABLE)
    fill(harness, 3_000)
    source = harness.source()
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        parts = [pickle.loads(pickle.dumps(p)) for p in snapshot.parts(schema, 16_384)]
        assert len(parts) > 1, "a table of many parts was expected"
        found: list[int] = []

        def read(index: int) -> None:
            for batch in parts[index].read():
                found.extend(harness.row(row)["id"] for row in rows_of(batch, schema))

        threads = [threading.Thread(target=read, args=(index,)) for index in range(len(parts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(3_000))


def a_snapshot_stands_still(harness: SourceHarness) -> None:
    """A snapshot does not show later commits, however late a part is read."""
    harness.execute(TABLE)
    fill(harness, 50)
    source = harness.source()
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        harness.execute("DELETE FROM t WHERE id < 10", "UPDATE t SET v = 'late'")
        rows = list(map(harness.row, scan(snapshot, schema)))
    assert sorted(row["id"] for row in rows) == list(range(50))
    assert all(row["v"] != "late" for row in rows)


def a_scan_takes_a_range_of_keys(harness: SourceHarness) -> None:
    """A scan reads only the rows whose key is in the half-open range."""
    harness.execute(TABLE)
    fill(harness, 100)
    source = harness.source()
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        middle = scan(snapshot, schema, keys=KeyRange(("20",), ("40",)))
        above = scan(snapshot, schema, keys=KeyRange(("90",), None))
    assert sorted(row["id"] for row in middle) == list(range(20, 40))
    assert sorted(row["id"] for row in above) == list(range(90, 100))


def a_scan_takes_chosen_keys(harness: SourceHarness) -> None:
    """A scan reads the rows of single keys, as far as they are there; a text is found by its code
    points (if the source reads keys)."""
    harness.execute(TABLE)
    fill(harness, 3_000)
    harness.execute(
        "CREATE TABLE p (a VARCHAR(20) NOT NULL, b INT NOT NULL, v INT, PRIMARY KEY (a, b))",
        "INSERT INTO p VALUES ('x', 1, 10), ('X', 3, 11), ('it''s', 2, 12), ('x', 2, 13)",
    )
    source = harness.source()
    schema, pairs = source.describe(None, "t"), source.describe(None, "p")
    if not source.reads_keys(schema):
        return
    with source.snapshot([schema, pairs]) as snapshot:
        harness.execute("DELETE FROM t WHERE id = 7")
        keys = KeySet(((7,), (2_999,), (-5,), (5_000_000,)))
        found = scan(snapshot, schema, part_bytes=1 << 12, keys=keys)
        assert sorted(row["id"] for row in found) == [7, 2_999]
        wanted = KeySet((("x", 1), ("it's", 2), ("it's", 1), ("x", 3), ("\\", 1)))
        values = sorted(row["v"] for row in scan(snapshot, pairs, keys=wanted))
    assert values == [10, 12]


def a_scan_takes_chosen_columns(harness: SourceHarness) -> None:
    """Columns that were not chosen are null; the key is always read."""
    harness.execute("CREATE TABLE t (id INT NOT NULL PRIMARY KEY, a INT, b INT)")
    harness.execute("INSERT INTO t VALUES (1, 2, 3)")
    source = harness.source()
    schema = source.describe(None, "t")
    with source.snapshot([schema]) as snapshot:
        (part,) = snapshot.parts(schema, columns=[2])
        (batch,) = part.read()
    assert [column.to_pylist() for column in batch.columns] == [[1], [None], [3]]


def every_type_there_and_back(harness: SourceHarness) -> None:
    """Scan and stream give the same value for each type, in the neutral log form."""
    types = harness.types()
    columns = ", ".join(f"c{i} {kind.sql}" for i, kind in enumerate(types))
    harness.execute(f"CREATE TABLE t (id INT NOT NULL PRIMARY KEY, {columns})")
    count = max(len(kind.values) for kind in types)
    rows = [", ".join(_literal(kind, n) for kind in types) for n in range(count)]
    before = [f"INSERT INTO t VALUES ({n}, {row})" for n, row in enumerate(rows)]
    after = [f"INSERT INTO t VALUES ({n + count}, {row})" for n, row in enumerate(rows)]
    harness.execute(*before)
    with capturing(harness, "t") as (state, reader):
        schema = reader.source.describe(None, "t")
        with reader.source.snapshot([schema]) as snapshot:
            scanned = {row["id"]: row for row in scan(snapshot, schema)}
            for part in snapshot.parts(schema):
                for batch in part.read():
                    for column, values in zip(schema.columns, batch.columns, strict=True):
                        assert problem(column, values) == ""
        harness.execute(*after)
        reader.catch_up()
        streamed = {change.after["id"]: change.after for change in state.changes() if change.after}
        for batch in batches(state, "t"):
            for i, column in enumerate(batch.schema.columns):
                assert problem(column, batch.rows.column(f"a{i}")) == ""
    for i, kind in enumerate(types):
        assert str(schema.columns[i + 1].logical) == kind.logical, kind.sql
        for n in range(count):
            wanted = _wanted(kind, n)
            assert scanned[n][f"c{i}"] == wanted, f"scan of {kind.sql}"
            found = streamed[n + count][f"c{i}"]
            assert found == wanted, f"stream of {kind.sql}: {found!r}"


def _literal(kind: Type, number: int) -> str:
    return kind.values[number][0] if number < len(kind.values) else "NULL"


def _wanted(kind: Type, number: int) -> str | int | bool | None:
    return kind.values[number][1] if number < len(kind.values) else None


def hostile_names_are_only_names(harness: SourceHarness) -> None:
    """Tables and columns of any name are captured, scanned and streamed."""
    names = harness.hostile_names()
    quoted = [harness.quote(name) for name in names]
    columns = ", ".join(f"{name} INT" for name in quoted)
    for name in quoted:
        harness.execute(f"CREATE TABLE {name} (id INT NOT NULL PRIMARY KEY, {columns})")
    values = ", ".join(str(n) for n in range(len(names)))
    with capturing(harness, *names) as (state, reader):
        for name in quoted:
            harness.execute(f"INSERT INTO {name} VALUES (1, {values})")
        reader.catch_up()
        wanted = {"id": 1, **{name: n for n, name in enumerate(names)}}
        for name in names:
            assert [change.after for change in state.changes(name)] == [wanted]
            schema = reader.source.describe(None, name)
            with reader.source.snapshot([schema]) as snapshot:
                assert list(map(harness.row, scan(snapshot, schema))) == [wanted]
        watches = [Watch(name) for name in names]
        assert state.attach(reader.source).check(watches) == []


def scan_and_stream_are_the_table(harness: SourceHarness) -> None:
    """During writes, the rows of a snapshot and the changes above its position make the table."""
    harness.execute(TABLE)
    fill(harness, 200)
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(harness, stop))
    writer.start()
    try:
        with capturing(harness, "t") as (state, reader):
            schema = reader.source.describe(None, "t")
            with reader.source.snapshot([schema]) as snapshot:
                rows = scan(snapshot, schema, part_bytes=8192)
                position = snapshot.position
            place = len(state.changes())
            reader.wait(lambda: len(state.changes()) > place + 200)
            stop.set()
            writer.join()
            reader.catch_up()
            copy = Copy(schema, rows)
            copy.apply(state, at_or_below(state, position))
            with reader.source.snapshot([schema]) as snapshot:
                assert copy.rows() == sorted(scan(snapshot, schema), key=repr)
    finally:
        stop.set()
        writer.join()


def a_scan_goes_on_under_a_later_snapshot(harness: SourceHarness) -> None:
    """Some parts of one snapshot, the changes since, and what was left under a later snapshot make
    the table (if scans of the source go on)."""
    harness.execute(TABLE)
    fill(harness, 3_000)
    with capturing(harness, "t") as (state, reader):
        schema = reader.source.describe(None, "t")
        with reader.source.snapshot([schema]) as first:
            parts = first.parts(schema, 16_384)
            ranges = [found for part in parts if (found := first.part_range(part)) is not None]
            if len(ranges) < len(parts):
                return
            begun, position = len(parts) // 2, first.position
            read = [r for part in parts[:begun] for b in part.read() for r in rows_of(b, schema)]
        places, left = {one.place for one in ranges}, joined(ranges[begun:])
        assert len(left) < 3 and read, "half of the parts are few ranges"
        harness.execute(
            "UPDATE t SET v = 'changed' WHERE id BETWEEN 1000 AND 2000",
            "DELETE FROM t WHERE id BETWEEN 100 AND 200 OR id BETWEEN 2500 AND 2600",
            "UPDATE t SET id = id + 1000000 WHERE id BETWEEN 300 AND 310",
            "UPDATE t SET id = id - 1000000 WHERE id BETWEEN 2900 AND 2910",
            "INSERT INTO t VALUES (-1, 'new'), (5000000, 'new')",
        )
        reader.catch_up()
        with reader.source.snapshot([schema]) as second:
            rest = second.rest(schema, places, left, 16_384)
            assert rest is not None and len(rest) > 1, "the rest is read in parallel"
            again = [row for part in rest for b in part.read() for row in rows_of(b, schema)]
            assert 0 < len(again) < 2_500, "only what was left is read"
            copy = Copy(schema, read)
            copy.apply(state, at_or_below(state, position))
            copy.put(again)
            assert copy.rows() == sorted(scan(second, schema), key=repr)


def _write(harness: SourceHarness, stop: threading.Event) -> None:
    """Commit transactions of several rows: inserts, updates, changes of the key, deletes."""
    with harness.session() as session:
        number = 1_000
        while not stop.is_set():
            number += 1
            session.execute(f"INSERT INTO t VALUES ({number}, 'new')")
            session.execute(f"UPDATE t SET v = 'at {number}' WHERE id = {number % 200}")
            session.execute(f"UPDATE t SET id = {number + 1_000_000} WHERE id = {number - 3}")
            session.execute(f"DELETE FROM t WHERE id = {number + 1_000_000 - 9}")
            session.rollback() if number % 7 == 0 else session.commit()


def fill(harness: SourceHarness, count: int, table: str = "t", first: int = 0) -> None:
    """Insert ``count`` rows with keys from ``first`` on, in one transaction."""
    with harness.session() as session:
        for start in range(first, first + count, 500):
            keys = range(start, min(start + 500, first + count))
            rows = ", ".join(f"({key}, 'row {key}')" for key in keys)
            session.execute(f"INSERT INTO {table} VALUES {rows}")
        session.commit()
