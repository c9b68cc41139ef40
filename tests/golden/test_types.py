"""The page of types: what becomes of each logical type in each sink and format, made from the code.

``pytest tests/golden --rewrite`` writes ``docs/types.md`` again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from changefeed.core.schema import Column
from changefeed.core.types import Kind
from changefeed.encoding.arrow_schema import arrow_type
from changefeed.encoding.avro.schema import union
from changefeed.encoding.debezium.fields import field_of as connect_field
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.protobuf.schema import value_proto
from changefeed.options import Envelope, Format
from changefeed_testing.sinks.rows import column_of, table_of
from sinks import registry
from sinks.elasticsearch.mapping import field_of as document_field
from sinks.lake.types import spark_type
from sinks.warehouse.bigquery.sql import BigQueryDialect
from sinks.warehouse.clickhouse.sql import ClickHouseDialect
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.duckdb import DuckDBDialect
from sinks.warehouse.mysql import MySQLDialect
from sinks.warehouse.postgresql import PostgreSQLDialect
from sinks.warehouse.redshift import RedshiftDialect
from sinks.warehouse.snowflake.sql import SnowflakeDialect
from sinks.warehouse.spanner.sql import SpannerDialect

PAGE = Path(__file__).parents[2] / "docs" / "types.md"

#: Logical type -> what PostgreSQL calls it.
TYPES = {
    "bool": "boolean",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float32": "real",
    "float64": "double precision",
    "decimal(12,2)": "numeric(12,2)",
    "decimal(60,2)": "numeric(60,2)",
    "decimal": "numeric",
    "text": "text, varchar, enum",
    "bytes": "bytea",
    "date": "date",
    "time": "time",
    "timetz": "timetz",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "interval": "interval",
    "json": "json, jsonb",
    "uuid": "uuid",
    "array<int32>": "integer[]",
    "array<timestamptz>": "timestamptz[]",
    "array<json>": "json[], jsonb[]",
    "other": "any other",
}

HEAD = """\
# Types

What becomes of a value in each target. This page is made from the code; `pytest tests/golden
--rewrite` writes it again. The first column has PostgreSQL's names;
[source-mysql.md](source-mysql.md) describes MySQL's types. The pages of the sinks list the values
that a type cannot hold.
"""

#: How PostgreSQL writes what Debezium's type depends on.
WRITTEN = {
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}

DIALECTS: Sequence[Dialect] = (
    DuckDBDialect(),
    PostgreSQLDialect(),
    MySQLDialect(),
    RedshiftDialect(),
    BigQueryDialect(),
    SnowflakeDialect(),
    ClickHouseDialect(),
    SpannerDialect(),
)


def kept(dialect: Dialect) -> Callable[[Column], str]:
    def cell(column: Column) -> str:
        sql, key = dialect.rule(column).sql, dialect.rule(column, key=True).sql
        return f"`{sql}`" + (f", key `{key}`" if key != sql else "")

    return cell


def document(column: Column) -> str:
    field = document_field(column, "flattened")
    more = "".join(f", `.{name}` `{of['type']}`" for name, of in field.get("fields", {}).items())
    return f"`{field['type']}`{more}"


def avro(column: Column) -> str:
    def of(part: object) -> str:
        if not isinstance(part, dict):
            return str(part)
        if part["type"] == "array":
            return f"array of {of(part['items'][1])}"
        logical = part["logicalType"]
        digits = f"({part['precision']},{part['scale']})" if "precision" in part else ""
        return f"{part['type']}, {logical}{digits}"

    return f"`{'` or `'.join(of(part) for part in union(column.logical.typed)[1:])}`"


def protobuf(column: Column) -> str:
    table = table_of("t", c=str(column.logical))
    text = value_proto(MessagePlan(table, "t", format=Format.PROTOBUF, envelope=Envelope.BARE))
    assert text is not None
    found = re.search(r"^  (?:optional )?(\S+) c = ", text, re.MULTILINE)
    assert found is not None, text
    if not found[1].endswith("_array"):
        return f"`{found[1]}`"
    element = re.search(r"^    (?:optional )?(\S+) value = ", text, re.MULTILINE)
    assert element is not None, text
    return f"`items` of `{element[1]}`"


def debezium(column: Column) -> str:
    written = WRITTEN.get(str(column.logical), column.type_name)
    found = connect_field(replace(column, type_name=written))
    name = f", `{found.name.rpartition('.')[2]}`" if found.name else ""
    items = f" of `{found.items.type}`" if found.items else ""
    return f"`{found.type}`{items}{name}"


def json(column: Column) -> str:
    kind = column.kind
    text = f'"{kind.sample}"' if kind.form == "text" else kind.sample
    return "`" + text.replace("\\", "\\\\") + "`"


Columns = Mapping[str, Callable[[Column], str]]

TABLES: Mapping[str, Columns] = {
    "Tables of databases": {dialect.name: kept(dialect) for dialect in DIALECTS},
    "Lakes and documents": {
        "Delta": lambda column: f"`{spark_type(column.logical)}`",
        "Iceberg": lambda column: f"`{spark_type(column.logical, small=False)}`",
        "Elasticsearch": document,
    },
    "Messages and files": {
        "JSON (example)": json,
        "Avro": avro,
        "Parquet": lambda column: f"`{arrow_type(column.logical.typed)}`",
        "Protobuf": protobuf,
        "Debezium (Kafka Connect)": debezium,
    },
}

#: Sinks without a column of their own: their messages are of a format.
OF_FORMATS = {"sinks.kafka", "sinks.files", "sinks.webhook", "sinks.table", "sinks.reader"}
#: Sinks that keep nothing.
NOTHING = {"sinks.null", "sinks.terminal"}


def markdown() -> str:
    lines = [HEAD]
    for title, columns in TABLES.items():
        lines += [
            f"## {title}\n",
            f"| type | {' | '.join(columns)} |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for logical, source in TYPES.items():
            column = column_of("c", logical, 1)
            lines.append(f"| {source} | {' | '.join(of(column) for of in columns.values())} |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_of_types_is_what_the_code_does(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(markdown(), "utf-8")
    assert PAGE.read_text("utf-8") == markdown()


def test_every_kind_and_every_sink_is_on_the_page() -> None:
    assert {column_of("c", logical, 1).kind for logical in TYPES} == set(Kind)
    shown = {name.lower() for columns in TABLES.values() for name in columns}
    for scheme, entry in registry.BUILT_IN.items():
        package = entry.location.partition(":")[0]
        if not package.startswith((*OF_FORMATS, *NOTHING)):
            assert scheme.partition("+")[0] in shown, scheme
