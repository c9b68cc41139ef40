"""A publication that somebody else changed: which tables it concerns is told, and it is undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName
from changefeed.sources.postgres import PostgresSource, publications
from changefeed.sources.postgres.connect import connect
from tests.conformance.conftest import ALL
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres

A, B = TableName("shop", "public", "a"), TableName("shop", "public", "b")


class Publication:
    """Ours, of tables ``a`` and ``b``."""

    def __init__(self, database: Database, source: PostgresSource) -> None:
        self.database = database
        self.source = source
        self.name = f"changefeed_{database.name}"
        self.held = source.attach("tests", {"slot": self.name, "publication": self.name})
        self.prepare(A, B)

    def prepare(self, *tables: TableName) -> dict[TableName, str]:
        """Make it so; what was found to be altered."""
        prepared = self.held.capture(tables, resume=False)
        assert not prepared.problems
        return dict(prepared.altered)

    def numbers(self) -> dict[int, str]:
        rows = self.database.execute(
            "select oid::int8, relname from pg_class where relname in ('a', 'b')"
        )
        return dict(rows)

    def altered(self) -> dict[str, str]:
        """What was done, by table."""
        numbers = self.numbers()
        found = self.held.altered(numbers)
        return {numbers[oid]: why for oid, why in found.items()}

    def change(self, sql: str) -> None:
        self.database.execute(sql.format(p=f'"{self.name}"'))

    def sends(self) -> list[tuple[object, ...]]:
        """What it sends, as the server sees it."""
        return self.database.execute(
            "select t.tablename, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,"
            " p.pubviaroot, p.puballtables from pg_publication p join pg_publication_tables t"
            " using (pubname) where pubname = %s order by 1",
            [self.name],
        )


@pytest.fixture
def publication(postgres: Database) -> Iterator[Publication]:
    postgres.execute("create table a (id int primary key, v text); create table b (id int)")
    postgres.execute("alter table b replica identity full")
    source = PostgresSource("shop", postgres.uri)
    yield Publication(postgres, source)
    source.close()


OURS = [(name, True, True, True, True, True, False) for name in ("a", "b")]


@pytest.mark.parametrize(
    "change, tables, why",
    [
        ("alter publication {p} drop table a", ["a"], "the table was taken out of"),
        (
            "alter publication {p} drop table a; alter publication {p} add table a",
            ["a"],
            "was taken out of publication",
        ),
        ("alter publication {p} set (publish = 'insert')", ["a", "b"], "was altered"),
        (
            "alter publication {p} set (publish = 'insert');"
            "alter publication {p} set (publish = 'insert, update, delete, truncate')",
            ["a", "b"],
            "was altered",
        ),
        ("alter publication {p} set (publish_via_partition_root = false)", ["a", "b"], "altered"),
        (
            "drop publication {p}; create publication {p} for table a, b",
            ["a", "b"],
            "was dropped and created again",
        ),
        (
            "drop publication {p}; create publication {p} for all tables",
            ["a", "b"],
            "was dropped and created again",
        ),
        ("alter publication {p} set table a where (id > 5), b", ["a"], "row filter"),
        ("alter publication {p} drop table a; alter publication {p} add table a (id)", ["a"], ""),
        ("alter publication {p} add tables in schema public", ["a", "b"], "created again"),
    ],
)
def test_what_somebody_did_to_it(
    publication: Publication, change: str, tables: list[str], why: str
) -> None:
    assert publication.altered() == {}
    publication.change(change)
    found = publication.altered()
    assert sorted(found) == tables
    assert all(why in reason for reason in found.values()), found
    publication.prepare(A, B)
    assert publication.altered() == {}
    assert publication.sends() == OURS


@ALL
def test_what_we_do_to_it_is_no_gap(postgres: Database, publication: Publication) -> None:
    assert publication.altered() == {}
    postgres.execute("create table c (id int primary key)")
    assert publication.prepare(A, B, TableName("shop", "public", "c")) == {}
    assert publication.altered() == {}
    assert publication.prepare(A, B) == {}
    assert publication.prepare(A, B) == {}
    assert publication.altered() == {}
    postgres.execute("vacuum full pg_publication")
    postgres.execute("vacuum (full, freeze) pg_publication_rel")
    assert publication.altered() == {}
    publication.change("alter publication {p} set (publish = 'insert, update')")
    assert sorted(publication.altered()) == ["a", "b"]
    assert publication.prepare(A, B).keys() == {A, B}
    assert publication.sends() == OURS


def test_a_change_between_our_look_and_our_own_change_is_told(publication: Publication) -> None:
    publication.change("alter publication {p} drop table b; alter publication {p} add table b")
    assert publication.prepare(A, B).keys() == {B}
    assert publication.prepare(A, B) == {}


def test_a_publication_of_an_earlier_version(publication: Publication) -> None:
    """Its comment does not say which transaction was ours: what is right counts as ours."""
    publication.change("comment on publication {p} is 'made by changefeed'")
    publication.change("alter publication {p} drop table a; alter publication {p} add table a")
    assert publication.altered() == {}
    publication.change("alter publication {p} drop table b")
    assert list(publication.altered()) == ["b"]
    publication.prepare(A, B)
    publication.change("alter publication {p} drop table a; alter publication {p} add table a")
    assert list(publication.altered()) == ["a"]


def test_it_is_gone(publication: Publication) -> None:
    publication.change("drop publication {p}")
    with pytest.raises(ChangefeedError, match="was dropped") as caught:
        publication.altered()
    assert caught.value.code.number == "CF2102"
    with pytest.raises(ChangefeedError, match="was dropped"):
        publication.held.capture([A], resume=True)


@pytest.mark.parametrize(
    "row, last, younger",
    [
        (5, 4, True),
        (4, 4, False),
        (3, 4, False),
        (3, 2**32 - 2, True),
        (2**32 - 3, 2**32 - 2, False),
        (3, 2**33 + 2, True),
        (1, 2**33 + 2, False),
        (9, None, False),
    ],
)
def test_numbers_of_transactions_wrap(row: int, last: int | None, younger: bool) -> None:
    assert publications.younger(row, last) is younger


def test_our_last_change_is_kept(publication: Publication) -> None:
    with closing(connect(publication.database.uri)) as session:
        last = publications._last_change(session, publication.name)
        [number] = session.execute("select txid_current()").fetchone() or (0,)
    assert last is not None and last < number
