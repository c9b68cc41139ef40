"""Record what a real server sends: ``python -m tests.helpers.record_mysql``.

The statements below have every type, every kind of transaction and DDL between them. Run it again
when they change; the recordings are kept with the tests, so that the tests need no server.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.mysql.address import Address
from changefeed.sources.mysql.describe import read_tables
from changefeed.sources.mysql.gtid import GtidSet
from changefeed.sources.mysql.session import MySQLSession, connect
from changefeed.sources.mysql.stream import read_charsets
from changefeed.sources.mysql.wire import BinlogConnection
from tests.helpers.mysql_recordings import SOURCE, Recording
from tests.services.mysql import SERVERS, BinlogServer

DATABASE = "rec"

_TYPES = """
    id int primary key, ti tinyint, tu tinyint unsigned, y year, si smallint,
    su smallint unsigned, mi mediumint, mu mediumint unsigned, i int, iu int unsigned,
    bi bigint, bu bigint unsigned, zf int(6) zerofill,
    d decimal(20,5), d2 decimal(5,5), d3 decimal(65,30), d4 decimal(9,0), d5 decimal(18,9),
    f float, db double, b1 bit(1), b9 bit(9), b64 bit(64),
    da date, t time, t3 time(3), t6 time(6), t1 time(1),
    dt datetime, dt2 datetime(2), dt6 datetime(6), ts timestamp null, ts5 timestamp(5) null,
    c char(10), cl char(255), v varchar(20), vl varchar(2000),
    latin varchar(20) character set latin1, u16 varchar(20) character set utf16,
    sj varchar(20) character set sjis,
    tt tinytext, tx text, mt mediumtext, lt longtext,
    bn binary(8), vb varbinary(20), bb blob, lb longblob,
    e enum('a','b','c,d','it''s','ü'), st set('x','y','zé'),
    el enum('ä','ö') character set latin1, js json, g geometry, p point
"""
_MARIADB_TYPES = ", uu uuid, i4 inet4, i6 inet6"

_ROWS: list[dict[str, Any]] = [
    {"id": 1},
    dict(
        id=2, ti=-128, tu=255, y=2024, si=-32768, su=65535, mi=-8388608, mu=16777215,
        i=-2147483648, iu=4294967295, bi=-(2**63), bu=2**64 - 1, zf=42,
        d="-123456789012345.12345", d2="0.00001", d4="999999999", d5="-123456789.000000001",
        d3="-12345678901234567890123456789012345.012345678901234567890123456789",
        f=1.5, db=-1e300, b1=1, b9=b"\x01\xff", b64=b"\xff" * 8,
        da="2024-02-29", t="-838:59:59", t3="-00:00:00.001", t6="12:34:56.789012",
        t1="-1:02:03.4", dt="2024-03-31 01:02:03", dt2="1000-01-01 00:00:00.12",
        dt6="9999-12-31 23:59:59.999999", ts="2024-03-31 01:02:03",
        ts5="2038-01-19 03:14:07.12345", c="abc", cl="ü" * 255, v="héllo", vl="x" * 1999,
        latin="ñandü€", u16="日本𝄞", sj="日本", tt="tiny", tx="t" * 6000, mt="m", lt="l",
        bn=b"\x01\x00", vb=b"\x00\xff", bb=b"\x80abc", lb=b"zz", e="it's", st="x,zé", el="ö",
        js='{"a": 1, "bb": [1, 2.5, null, true, "s\\n€"], "c": {"x": {}}}',
    ),
    dict(
        id=3, ti=0, tu=0, y=0, si=0, su=0, mi=-1, mu=0, i=0, iu=0, bi=0, bu=0, zf=0, d="0",
        d2="-0.5", d3="0", d4="-1", d5="0.1", f=0.1, db=0.1, b1=0, b9=b"\x00\x01", b64=b"\x00",
        da="0000-00-00", t="00:00:00", t3="100:00:00.5", t6="-00:00:00.000001", t1="0",
        dt="0000-00-00 00:00:00", dt2="2024-00-10 00:00:00", dt6="2024-01-01 00:00:00.000001",
        ts="1970-01-01 00:00:01", ts5="0000-00-00 00:00:00", c="", cl="", v="", vl="",
        latin="", u16="", sj="", tt="", tx="", mt="", lt="", bn=b"", vb=b"", bb=b"", lb=b"",
        e="ü", st="", el="ä",
        js="[1,-1,32768,-2147483649,18446744073709551615,1e100,1.0,0.1,1e-7,1e-16,1e15,1e14,"
        '123456789.5,-1e22,1.5e300,5e-324,"",{}, [], "\\u0001\\"\\\\"]',
    ),
]  # fmt: skip
_MARIADB_ROWS: dict[int, dict[str, str]] = {
    2: {
        "uu": "123e4567-e89b-12d3-a456-426655440000",
        "i4": "192.168.1.2",
        "i6": "2001:db8::ff00:42:8329",
    },
    3: {"uu": "01890a5d-ac96-774b-bcce-b302099a8057", "i4": "0.0.0.0", "i6": "::ffff:1.2.3.4"},
}
_MYSQL_JSON = """
    INSERT INTO alltypes (id, js) VALUES (4, JSON_OBJECT('d', CAST(-1.50 AS DECIMAL(10,2)),
      't', CAST('-10:11:12.5' AS TIME(6)), 'dt', CAST('2024-01-02 03:04:05' AS DATETIME(6)),
      'da', CAST('2024-01-02' AS DATE), 'b', CAST(x'00ff' AS BINARY), 'k', REPEAT('y', 300),
      'big', JSON_ARRAY(REPEAT('z', 40000), REPEAT('w', 40000))))
"""


def _statements(mariadb: bool) -> list[str | tuple[str, list[Any]]]:
    """Everything that is recorded, in order."""
    made: list[str | tuple[str, list[Any]]] = [
        f"CREATE TABLE alltypes ({_TYPES}{_MARIADB_TYPES if mariadb else ''})"
        " CHARACTER SET utf8mb4",
        "CREATE TABLE items (id int primary key, name varchar(50), n int)",
        "CREATE TABLE pairs (a int, b varchar(20), v int, primary key (b, a))",
        "CREATE TABLE plain (x int, y text)",
        "CREATE TABLE ignored (id int primary key)",
        "CREATE TABLE wide (id int primary key, "
        + ", ".join(f"c{i} {'int' if i % 3 else 'varchar(9)'}" for i in range(300))
        + ")",
    ]
    for row in _ROWS:
        if mariadb:
            row = {**row, **_MARIADB_ROWS.get(row["id"], {})}
        marks = ", ".join(["%s"] * len(row))
        made.append(
            (f"INSERT INTO alltypes ({', '.join(row)}) VALUES ({marks})", list(row.values()))
        )
    if not mariadb:
        made.append(_MYSQL_JSON)
    many = ", ".join(f"({i}, concat('name ', {i}), {i % 7})" for i in range(1000))
    few = ", ".join(f"({i}, 'x', {i})" for i in range(2000, 2020))
    compressed = ", ".join(f"({i}, repeat(char(65 + {i} % 26), 20), 1)" for i in range(100, 400))
    made += [
        "UPDATE alltypes SET g = ST_GeomFromText('POINT(1 2)'), p = ST_GeomFromText('POINT(3 4)')"
        " WHERE id = 2",
        "UPDATE alltypes SET id = 11, js = '[true]' WHERE id = 1",
        "DELETE FROM alltypes WHERE id = 3",
        f"INSERT INTO items VALUES {many}",
        "UPDATE items SET n = n + 1 WHERE id % 2",
        "UPDATE items SET id = id + 5000 WHERE id % 10 = 0",
        "DELETE FROM items WHERE id % 5 = 1",
        # Several writes of one key, and of several tables, in one transaction.
        "BEGIN",
        "INSERT INTO items VALUES (3000, 'new', 1), (3001, 'gone', 2)",
        "INSERT INTO pairs VALUES (1, 'one', 1), (2, 'two', 2)",
        "UPDATE items SET n = 10 WHERE id IN (2, 3000)",
        "UPDATE items SET n = 11 WHERE id = 2",
        "DELETE FROM items WHERE id = 3001",
        "INSERT INTO ignored VALUES (1)",
        "UPDATE pairs SET a = 9 WHERE a = 1",
        "UPDATE pairs SET a = 1, v = 7 WHERE a = 9",
        "COMMIT",
        "INSERT INTO plain VALUES (1, 'a'), (1, 'a'), (NULL, NULL)",
        "UPDATE plain SET y = 'b' LIMIT 1",
        "DELETE FROM plain WHERE x IS NULL",
        "INSERT INTO wide (id, c0, c299) VALUES (1, 'a', 3), (2, NULL, NULL)",
        "UPDATE wide SET c150 = 'mid' WHERE id = 2",
        # A rolled back part, and DDL between changes.
        "BEGIN",
        f"INSERT INTO items VALUES {few}",
        "SAVEPOINT s",
        "DELETE FROM items WHERE id = 2003",
        "ROLLBACK TO s",
        "COMMIT",
        "ALTER TABLE items ADD COLUMN note varchar(10)",
        "INSERT INTO items VALUES (4000, 'four', 4, 'noted')",
        "ALTER TABLE items ADD COLUMN flag int NOT NULL DEFAULT 5 AFTER id",
        "UPDATE items SET note = 'n' WHERE id = 2",
        "ALTER TABLE items RENAME COLUMN name TO title, MODIFY n bigint",
        "DELETE FROM items WHERE id = 4",
        "TRUNCATE TABLE pairs",
        "INSERT INTO pairs VALUES (5, 'five', 5)",
        # Two-phase transactions: one that commits, one that does not.
        "XA START 'yes'",
        "INSERT INTO pairs VALUES (6, 'six', 6), (7, 'seven', 7)",
        "UPDATE pairs SET v = 66 WHERE a = 6",
        "XA END 'yes'",
        "XA PREPARE 'yes'",
        "XA COMMIT 'yes'",
        "XA START 'no','b',7",
        "DELETE FROM pairs",
        "XA END 'no','b',7",
        "XA PREPARE 'no','b',7",
        "XA ROLLBACK 'no','b',7",
        "XA START 'at once'",
        "INSERT INTO pairs VALUES (8, 'eight', 8)",
        "XA END 'at once'",
        "XA COMMIT 'at once' ONE PHASE",
        "SET GLOBAL log_bin_compress = ON"
        if mariadb
        else "SET SESSION binlog_transaction_compression = ON",
        f"INSERT INTO pairs VALUES {compressed}",
        "UPDATE pairs SET v = v + 1 WHERE a > 150",
        "DELETE FROM pairs WHERE a > 300",
        "SET GLOBAL log_bin_compress = OFF"
        if mariadb
        else "SET SESSION binlog_transaction_compression = OFF",
        "INSERT INTO pairs VALUES (9, 'the end', 9)",
    ]  # fmt: skip
    return made


def _address(server: BinlogServer) -> Address:
    return Address.read(server.uri("", "copy", "pa55word"))


def record(server: BinlogServer) -> Recording:
    """Run the statements and keep what the server sends meanwhile."""
    mariadb = server.flavor == "mariadb"
    session = connect(_address(server))
    session.run(
        f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}", f"USE {DATABASE}"
    )
    session.run("SET SESSION sql_mode = '', SESSION time_zone = '+00:00'")
    start = _executed(session)
    with session.raw.cursor() as cursor:
        for statement in _statements(mariadb):
            cursor.execute(*((statement,) if isinstance(statement, str) else statement))
    end = _executed(session)
    names = [(DATABASE, n) for n in ("alltypes", "items", "pairs", "plain", "wide")]
    described = read_tables(session, names)
    schemas: dict[TableName, TableSchema] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        schema = described[name].schema(SOURCE)
        schemas[schema.table] = schema
        rows[name[1]] = _printed(session, name[1], schema)
    charsets = dict(read_charsets(session))
    data = _log(server, start, end)
    used = {n: c for n, c in charsets.items() if c.width > 0}
    return Recording(server.flavor, data, start, used, schemas, rows)


def _executed(session: MySQLSession) -> str:
    name = "gtid_binlog_pos" if session.is_mariadb else "gtid_executed"
    return str(session.rows(f"SELECT @@GLOBAL.{name}")[0][0]).replace("\n", "")


def _printed(session: MySQLSession, table: str, schema: TableSchema) -> list[dict[str, Any]]:
    """The rows as the server prints them: bytes and geometry in hexadecimal digits."""
    columns = [
        f'HEX("{c.name}")' if c.kind in ("bytes", "bool") else f'CAST("{c.name}" AS CHAR)'
        for c in schema.columns
    ]
    session.run("SET SESSION sql_mode = 'ANSI_QUOTES'")
    return [
        {
            column.name: value
            for column, value in zip(schema.columns, row, strict=True)
            if value is not None
        }
        for row in session.rows(f"SELECT {', '.join(columns)} FROM {DATABASE}.{table}")
    ]


def _log(server: BinlogServer, start: str, end: str) -> bytes:
    session = connect(_address(server))
    session.run("SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'")
    session.run("SET @master_heartbeat_period = 500000000, @source_heartbeat_period = 500000000")
    if server.flavor == "mariadb":
        session.run("SET @mariadb_slave_capability = 4", f"SET @slave_connect_state = '{start}'")
    connection = BinlogConnection(session.raw)
    connection.register(77)
    if server.flavor == "mariadb":
        connection.dump(77, "", 4)
    else:
        connection.dump_gtid(77, GtidSet.parse(start))
    kept, quiet, view = bytearray(), time.monotonic(), memoryview(bytearray(1 << 20))
    # A heartbeat is less than a hundred bytes: the log is at its end.
    while time.monotonic() - quiet < 3:
        count = connection.receive_into(view)
        kept += view[:count]
        if count > 100:
            quiet = time.monotonic()
        connection.wait(0.2)
    connection.close()
    return bytes(kept)


def main() -> None:
    """Record all flavors."""
    for kind in SERVERS.values():
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            server = kind(Path(folder))
            server.start()
            try:
                record(server).save()
            finally:
                server.stop()


if __name__ == "__main__":
    main()
