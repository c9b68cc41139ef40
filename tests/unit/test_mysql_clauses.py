"""What the clauses of an ALTER TABLE do to stored rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.sources.mysql.binlog import QueryEvent
from changefeed.sources.mysql.clauses import Effect, effect
from changefeed.sources.mysql.ddl import read_definition
from changefeed.sources.mysql.tokens import conditional
from changefeed.sources.mysql.types import ColumnInfo, column_of

COLUMNS = {
    "id": "int(11)",
    "a": "int(11)",
    "b": "int(10) unsigned",
    "s": "varchar(9)",
    "c": "char(9)",
    "t": "datetime(6)",
    "ts": "timestamp",
    "d": "decimal(5,2)",
    "f": "double(10,3)",
    "e": "enum('a','b')",
    "m": "set('x','y')",
    "bin": "binary(2)",
    "txt": "text",
    "n": "int(11)",
}
KNOWN = TableSchema(
    table=TableName("shop", "d", "t"),
    columns=tuple(
        column_of(ColumnInfo(name, text, name not in ("id", "n"))) for name, text in COLUMNS.items()
    ),
    key=(0,),
    before_image=BeforeImage.FULL,
)


def done(clauses: str, *, strict: bool = True) -> Effect:
    text = f"ALTER TABLE t {clauses}"
    found = read_definition(QueryEvent("d", text))
    assert found is not None
    return effect(found.clauses, KNOWN, strict=strict, certain=not conditional(text))


HARMLESS = [
    "ADD COLUMN x INT",
    "ADD x INT NULL DEFAULT NULL COMMENT 'NOT NULL, DEFAULT 5' AFTER a",
    "ADD COLUMN x INT FIRST, ADD COLUMN y VARCHAR(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "ADD COLUMN (x INT, y JSON)",
    "ADD COLUMN x INT UNSIGNED UNIQUE KEY INVISIBLE",
    "ADD COLUMN IF NOT EXISTS a INT DEFAULT 5",
    "DROP COLUMN a",
    "DROP a, DROP COLUMN b CASCADE",
    "DROP COLUMN IF EXISTS nothing",
    "ADD INDEX i (a), ADD UNIQUE KEY (a, b), ADD KEY j (s(3)), ADD FULLTEXT (txt)",
    "ADD CONSTRAINT c CHECK (a > 0 AND s <> 'DROP PARTITION p')",
    "ADD CONSTRAINT `k` FOREIGN KEY (a) REFERENCES o (id) ON DELETE SET NULL",
    "ADD UNIQUE (a), DROP INDEX i, RENAME KEY i TO j, ALTER INDEX i INVISIBLE",
    "DROP FOREIGN KEY k, DROP CONSTRAINT c, DROP CHECK c",
    "COMMENT = 'x', ROW_FORMAT = DYNAMIC AUTO_INCREMENT 7",
    "DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin",
    "ENGINE = InnoDB",
    "FORCE, ALGORITHM = COPY, LOCK = NONE",
    "DISCARD TABLESPACE",  # no row can be read until the IMPORT
    "DISCARD PARTITION p1 TABLESPACE",
    "ALTER COLUMN a SET DEFAULT 3, ALTER b DROP DEFAULT",
    "ALTER s SET DEFAULT (concat('a', 'b')), ORDER BY a",
    "MODIFY a INT AFTER b, MODIFY COLUMN b INT(10) UNSIGNED FIRST",
    "MODIFY a BIGINT, MODIFY s VARCHAR(90) DEFAULT 'y', MODIFY d DECIMAL(9, 2)",
    "MODIFY s LONGTEXT, MODIFY txt MEDIUMTEXT",
    "MODIFY e ENUM('c', 'b', 'a'), MODIFY m SET('x', 'y', 'z')",
    "MODIFY a INT NOT NULL DEFAULT 0, MODIFY s VARCHAR(9) NOT NULL",
    "MODIFY t DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)",
    "ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))",
    "REORGANIZE PARTITION p0, p1 INTO (PARTITION p VALUES LESS THAN (20))",
    "REBUILD PARTITION ALL",
    "COALESCE PARTITION 2",
    "REMOVE PARTITIONING",
    "PARTITION BY HASH (id) PARTITIONS 4",
    "ADD COLUMN x INT PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10))",
]

REWRITES = [
    "ADD COLUMN x INT DEFAULT 5",
    "ADD COLUMN x INT NOT NULL",
    "ADD x TIMESTAMP",
    "ADD COLUMN x DATETIME DEFAULT CURRENT_TIMESTAMP",
    "ADD COLUMN u UUID DEFAULT uuid()",
    "ADD COLUMN (x INT, y INT DEFAULT 1)",
    "ADD COLUMN x INT AS (a * 2)",
    "ADD COLUMN x INT GENERATED ALWAYS AS (a * 2) VIRTUAL",
    "ADD COLUMN x INT AUTO_INCREMENT UNIQUE",
    "ADD COLUMN x SERIAL",
    "DROP COLUMN a, ADD COLUMN a INT",
    "DROP COLUMN nothing",
    "RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "RENAME COLUMN a TO x, ADD COLUMN a INT",
    "CHANGE nothing x INT",
    "MODIFY t DATETIME",
    "MODIFY t DATETIME(3)",
    "MODIFY a INT AS (b * 3) STORED",
    "MODIFY a SMALLINT",
    "MODIFY a INT UNSIGNED",
    "MODIFY b INT",
    "MODIFY b BIGINT UNSIGNED",  # its numbers are written as decimals
    "MODIFY a VARCHAR(20)",
    "MODIFY s VARCHAR(3)",
    "MODIFY s CHAR(9)",
    "MODIFY c VARCHAR(9)",
    "MODIFY s VARBINARY(9)",
    "MODIFY s VARCHAR(9) CHARACTER SET binary",
    "MODIFY d DECIMAL(9, 1)",
    "MODIFY f DOUBLE(10, 2)",
    "MODIFY e ENUM('a')",
    "MODIFY m SET('y', 'x')",
    "MODIFY bin BINARY(4)",
    "MODIFY ts TIMESTAMP NOT NULL",
    "CONVERT TO CHARACTER SET utf8mb4",
    "ENGINE = MyISAM",
    "ADD SYSTEM VERSIONING",
    "ADD PRIMARY KEY (a)",
    "SOMETHING NEW",
    "ADD COLUMN x INT SOMETHING NEW",
    "/*!50000 RENAME COLUMN a TO x */",
]

MOVES = [
    "MODIFY id SMALLINT",  # the key
    "DROP PARTITION p1",
    "DROP PARTITION IF EXISTS p1, p2",
    "TRUNCATE PARTITION ALL",
    "truncate partition p1",
    "EXCHANGE PARTITION p1 WITH TABLE other WITHOUT VALIDATION",
    "IMPORT TABLESPACE",
    "IMPORT PARTITION p1 TABLESPACE",
    "CONVERT PARTITION p1 TO TABLE other",
    "CONVERT TABLE other TO PARTITION p1 VALUES LESS THAN (5)",
]


@pytest.mark.parametrize("clauses", HARMLESS)
def test_stored_rows_read_as_before(clauses: str) -> None:
    found = done(clauses)
    assert (found.why, found.moved) == ("", False)


@pytest.mark.parametrize("clauses", REWRITES)
def test_stored_rows_may_read_otherwise(clauses: str) -> None:
    found = done(clauses)
    assert found.why
    assert not found.moved


@pytest.mark.parametrize("clauses", MOVES)
def test_rows_come_or_go(clauses: str) -> None:
    found = done(clauses)
    assert found.why
    assert found.moved


@pytest.mark.parametrize(
    "clauses",
    [
        "MODIFY a INT NOT NULL",
        "MODIFY s VARCHAR(9) NOT NULL",
        "MODIFY s VARCHAR(9) CHARACTER SET latin1",
        "CHANGE s x VARCHAR(20)",
    ],
)
def test_without_strict_mode_a_statement_may_lose_values(clauses: str) -> None:
    assert not done(clauses).why
    assert done(clauses, strict=False).why


@pytest.mark.parametrize(
    ("clauses", "renamed", "dropped", "touched"),
    [
        ("RENAME COLUMN a TO x", {"a": "x"}, "", "a x"),
        ("RENAME COLUMN IF EXISTS `A` TO `x y`", {"a": "x y"}, "", "a|x y"),
        ("CHANGE a x INT", {"a": "x"}, "", "a x"),
        ("CHANGE COLUMN a x BIGINT FIRST", {"a": "x"}, "", "a x"),
        ("CHANGE a A INT", {"a": "A"}, "", "a"),
        ("MODIFY a BIGINT", {}, "", "a"),
        ("DROP a, ADD x INT", {}, "a", "a x"),
        ("ADD INDEX (a)", {}, "", ""),
    ],
)
def test_what_becomes_of_columns(
    clauses: str, renamed: dict[str, str], dropped: str, touched: str
) -> None:
    found = done(clauses)
    assert dict(found.renamed) == renamed
    assert found.dropped == set(dropped.split())
    assert found.touched == set(touched.split("|" if "|" in touched else None))
    assert not found.why


@pytest.mark.parametrize(
    ("clauses", "key"),
    [
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)", ("id", "a")),
        ("ADD CONSTRAINT PRIMARY KEY USING BTREE (`a`, s(3) DESC)", ("a", "s")),
        ("ADD CONSTRAINT p PRIMARY KEY p (a) COMMENT 'PRIMARY KEY (b)'", ("a",)),
        ("ADD COLUMN x INT NOT NULL DEFAULT 0, DROP PRIMARY KEY, ADD PRIMARY KEY (id, x)",
         ("id", "x")),
        ("ADD KEY (a), ADD COLUMN `primary` INT, DROP PRIMARY KEY", ()),
        ("/*!80000 ADD PRIMARY KEY (a) */", ()),
    ],
)  # fmt: skip
def test_the_key_that_a_statement_makes(clauses: str, key: tuple[str, ...]) -> None:
    assert done(clauses).key == key


@pytest.mark.parametrize(
    ("clauses", "why"),
    [
        (
            "ADD y INT, ADD COLUMN x VARCHAR(9) DEFAULT 'secret'",
            "ADD COLUMN x VARCHAR(9) DEFAULT ..",
        ),
        ("ADD `x y` INT DEFAULT 5", "ADD `x y` INT DEFAULT 5"),
        ("MODIFY d DECIMAL(4,1)", "MODIFY d DECIMAL(4, 1)"),
        ("MODIFY e ENUM('secret')", "MODIFY e ENUM('..')"),
    ],
)
def test_the_reason_is_the_clause_without_texts_of_users(clauses: str, why: str) -> None:
    assert done(clauses).why == why


_WORDS = [
    *("ADD", "DROP", "MODIFY", "CHANGE", "COLUMN", "RENAME", "TO", "PARTITION", "INDEX", "a", "x"),
    *("INT", "(", ")", ",", "'", '"', "`", "=", ".", "5", "'text'", "DEFAULT", "NOT", "NULL"),
    *("IF", "EXISTS", "ALTER", "SET", "/*!", "*/", "--", "\n"),
]


@given(st.lists(st.sampled_from(_WORDS), max_size=12).map(" ".join))
def test_no_statement_is_too_odd_to_be_judged(clauses: str) -> None:
    if read_definition(QueryEvent("d", f"ALTER TABLE t {clauses}")) is None:
        return  # it has no table
    found = done(clauses)
    if found.dropped:
        assert "DROP" in clauses
    if found.renamed:
        assert {"RENAME", "CHANGE"} & set(clauses.split())
