"""A world in which the statements of the pages can be planned: tables, nothing that runs."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from changefeed.core.partition import KeyInterval, Partition
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.plan.context import CompileQuery
from changefeed.sources.base import PartitionInfo
from grammar import nodes
from grammar.parser import parse
from grammar.printer import to_sql
from tests.docs.blocks import Block, is_of_a_server
from tests.golden.world import FakeSource, World, shape

#: Tables that the pages name, beside schema ``public``: the name of a MySQL database is a schema.
_ORDERS = {
    "id": "bigint",
    "customer": "integer",
    "total": "numeric(12,2)",
    "status": "text",
    "details": "jsonb",
}
_TABLES = {
    "public.orders": (_ORDERS, ["id"]),
    "public.customers": ({"id": "integer", "name": "text"}, ["id"]),
    "public.payments": ({"id": "bigint", "paid": "numeric(12,2)"}, ["id"]),
    "public.events": ({"id": "bigint", "what": "text"}, ["id"]),
    "public.keys": ({"a": "bigint", "b": "text"}, ["a", "b"]),
    "public.sales": ({"id": "bigint", "total": "numeric(12,2)"}, ["id"]),
    "archive.orders": ({"id": "bigint", "what": "text"}, ["id"]),
    "shop.orders": (_ORDERS, ["id"]),
    "dbo.orders": (_ORDERS, ["id"]),
    "datasets.sample_data": ({"keycol1": "text", "nonkeycol1": "text"}, ["keycol1"]),
}
#: What a block may use without making it.
_CONNECTIONS = {
    "shop": "postgresql://app:pw@db:5432/shop",
    "crm": "postgresql://app:pw@db:5432/crm",
}
#: Statements that would wait for a node or for Spark, or need a feed in trouble: only parsed.
_PARSED = (
    nodes.Sync,
    nodes.Verify,
    nodes.CreateDataset,
    nodes.CreateFunction,
    nodes.RetryDeadLetters,
    nodes.DiscardDeadLetters,
    nodes.SkipTransaction,
    nodes.ResumeTables,
)
_OF_USERS = (nodes.AlterUser, nodes.Grant, nodes.Revoke, nodes.ShowGrants)
_USED = re.compile(r"(?:ALTER|PAUSE|RESUME|DROP|SHOW|SHOW CREATE) CHANGEFEED (?!IF|JOB)(\w+)")


class _Source(FakeSource):
    """The tables of the pages; partitions of any name."""

    def partition(self, table: TableSchema, name: str) -> PartitionInfo:
        number = table.columns[0].column_id
        return PartitionInfo(Partition(name, (KeyInterval((number,), ("1",), ("9",)),)), 10, 8192)


class PagesWorld(World):
    """A state whose every connection has the tables of the pages."""

    def open_source(self, name: str, uri: str) -> FakeSource:
        if name not in self.sources:
            made = [
                shape(
                    TableName(name, *table.split(".")), columns, key, before_image=BeforeImage.FULL
                )
                for table, (columns, key) in _TABLES.items()
            ]
            self.sources[name] = _Source(name, uri, {schema.table: schema for schema in made})
        return self.sources[name]


def _query(node: nodes.Statement) -> bool:
    return isinstance(node, nodes.CreateChangefeed) and node.query is not None


def has_query(block: Block) -> bool:
    """Whether a statement of the block is a CDC query."""
    return any(_query(parse(text)) for text in block.statements() if not is_of_a_server(text))


def plan(block: Block, folder: Path, compile_query: CompileQuery | None = None) -> int:
    """Execute the statements of changefeed in a block, as they are typed.

    The state is new; the connection ``shop`` and feeds that the block uses and does not make are
    there. Hosts are not asked: what is checked is what a statement means, all its options and the
    URIs. Without ``compile_query``, which needs Spark, a statement with a query is only parsed.

    Returns:
        How many statements there were.
    """
    mine = [text for text in block.statements() if not is_of_a_server(text)]
    made = [parse(text) for text in mine]
    with closing(PagesWorld(folder)) as world:
        if compile_query is not None:
            vars(world.node)["compile_query"] = compile_query
        for name, uri in _CONNECTIONS.items():
            if not any(isinstance(n, nodes.CreateConnection) and n.name == name for n in made):
                world.run(f"CREATE EXTERNAL CONNECTION {name} AS '{uri}'")
                if name == "shop":
                    world.run("USE shop")
        created = {n.name for n in made if isinstance(n, nodes.CreateChangefeed)}
        for feed in dict.fromkeys(name for text in mine for name in _USED.findall(text)):
            if feed not in created:
                world.run(
                    f"CREATE CHANGEFEED {feed} FOR shop.orders, shop.customers INTO 'null://'"
                )
        scheduled = nodes.PauseSchedule | nodes.ResumeSchedule | nodes.ShowCreateSchedule
        if any(isinstance(node, scheduled) for node in made):
            world.run(
                "CREATE SCHEDULE nightly FOR CHANGEFEED shop.orders INTO 'null://' "
                "RECURRING '@daily'"
            )
        if isinstance(made[0] if made else None, _OF_USERS):
            world.run("CREATE USER ann")
        for node in made:
            if isinstance(node, nodes.ResumeChangefeed):
                world.run("PAUSE ALL CHANGEFEEDS")
            elif isinstance(node, nodes.Revoke):
                world.run(to_sql(nodes.Grant(node.kind, node.names, node.users)))
            elif isinstance(node, nodes.DropCdc):
                world.run(
                    "CREATE CDC FOR shop.orders INTO KAFKA WITH cluster_address = 'http://k:9092'"
                )
        for node, text in zip(made, mine, strict=True):
            if not isinstance(node, _PARSED) and not (compile_query is None and _query(node)):
                result = world.run(text)
                list(result.stream or ())
    return len(mine)
