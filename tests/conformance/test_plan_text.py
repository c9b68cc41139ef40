"""A query that is checked by the text of its plan is the one that Spark's own objects check."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.query.evaluate import QuerySessions
from changefeed.query.model import CompiledQuery
from changefeed.spark.internals import abilities
from changefeed.spark.session import NodeSpark
from grammar import nodes
from grammar.parser import parse

pytestmark = pytest.mark.spark

_COLUMNS = (
    ("id", "int4", "int32"),
    ("id2", "int8", "int64"),
    ("status", "text", "text"),
    ("total", "numeric(8,2)", "decimal(8,2)"),
    ("at", "timestamptz", "timestamptz"),
    ("Odd Name", "text", "text"),
)
SCHEMA = TableSchema(
    TableName("shop", "public", "orders"),
    tuple(
        Column(name, kind, LogicalType.parse(logical), number > 1, number)
        for number, (name, kind, logical) in enumerate(_COLUMNS, 1)
    ),
    (0,),
)

ALIKE = (
    "SELECT id FROM orders",
    "SELECT * FROM orders WHERE total > 5",
    "SELECT id, total * 2 AS t, upper(status) AS s FROM orders WHERE status LIKE 'a, b]%'",
    "SELECT id, `odd name` AS o, concat('id#1', id2) AS x FROM orders o WHERE o.id2 IS NOT NULL",
    "SELECT ID AS other, id2 FROM orders WHERE at > timestamp '2020-01-01'",
    "SELECT id, struct(total, status) AS s, event_op() AS op FROM orders",
    "SELECT id, 'now' AS n, case when status = 'today' then 1 end AS c FROM orders",
    "SELECT id, to_date(status, 'yyyy') AS d, date_add(status, 1) AS e FROM orders",
    "SELECT id, cdc_prev.status AS was FROM orders WHERE cdc_prev.total IS DISTINCT FROM total",
    "SELECT status, window.start AS w, count(*) AS n, sum(total) AS t FROM orders GROUP BY status, "
    "window(event_timestamp(), '1 minute')",
)
REFUSED = (
    "SELECT id, rand() AS r FROM orders",
    "SELECT id, id + unix_timestamp() AS r FROM orders",
    "SELECT id, sum(total) AS s FROM orders",
    "SELECT id, explode(array(1)) AS s FROM orders",
    "SELECT id, lag(total) AS s FROM orders",
    "SELECT id, uper(status) AS s FROM orders",
    "SELECT id, total / 0 + 1 / 0 AS n FROM orders",
    "SELECT id, date_add('now', 1) AS d FROM orders",
    "SELECT id, to_date('yesterday') AS d FROM orders",
    "SELECT id, extract(day FROM 'today') AS d FROM orders",
    "SELECT id FROM orders WHERE date '2020-01-01' <= 'tomorrow'",
    "SELECT id, cdc_prev.stats AS was FROM orders",
    "SELECT status, window.end AS w, first(total) AS f FROM orders GROUP BY status, "
    "window(event_timestamp(), '1 minute')",
)


def query(select: str) -> nodes.Query:
    """The query of a CREATE CHANGEFEED."""
    statement = parse(f"CREATE CHANGEFEED f INTO 'null://' AS {select}")
    assert isinstance(statement, nodes.CreateChangefeed) and statement.query is not None
    return statement.query


@pytest.fixture(scope="module")
def sessions(spark_engine: NodeSpark) -> tuple[QuerySessions, QuerySessions]:
    """Two, as each keeps what it has compiled."""
    return QuerySessions(spark_engine), QuerySessions(spark_engine)


@pytest.fixture
def compiled(
    sessions: tuple[QuerySessions, QuerySessions], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, bool], CompiledQuery]:
    """Compiles a SELECT, by the text of its plan or not."""
    whole, lacking = abilities.survey, abilities.Survey("4", (abilities.PLANS,))

    def compile_one(select: str, by_text: bool) -> CompiledQuery:
        choice = (lambda session: lacking) if by_text else whole
        monkeypatch.setattr(abilities, "survey", choice)
        return sessions[by_text].compile(SCHEMA, query(select))

    return compile_one


@pytest.mark.parametrize("select", ALIKE)
def test_the_same_query(compiled: Callable[[str, bool], CompiledQuery], select: str) -> None:
    assert compiled(select, True) == compiled(select, False)


@pytest.mark.parametrize("select", REFUSED)
def test_the_same_refusal(compiled: Callable[[str, bool], CompiledQuery], select: str) -> None:
    errors = []
    for by_text in (False, True):
        with pytest.raises(ChangefeedError) as caught:
            compiled(select, by_text)
        errors.append((caught.value.code, caught.value.message))
    assert errors[0] == errors[1]
