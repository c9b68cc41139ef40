"""Which schema rows of Debezium have, and when a table looks otherwise than before.

The database's own description knows more than Debezium's (precision, unique keys). Where the rows
fit it, it is the schema; where the stream is older than the catalog, the schema is made of what
Debezium says alone.
"""

from __future__ import annotations

from collections.abc import Callable

from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.sources.debezium.carriers import column_of, fits
from changefeed.sources.debezium.frames import TableShape
from changefeed.sources.decoded.flushes import ShapeChange

Describe = Callable[[TableName], TableSchema | None]


class Shapes:
    """The schemas of the tables of one stream."""

    def __init__(
        self,
        describe: Describe,
        intern: Callable[[TableSchema], TableSchema],
        latest: Describe,
        *,
        long_times: bool,
    ) -> None:
        self._describe = describe
        self._intern = intern
        self._latest = latest
        self._long_times = long_times
        self._known: dict[TableName, TableSchema] = {}

    def resolve(self, name: TableName, shape: TableShape) -> tuple[TableSchema, ShapeChange | None]:
        """The schema of rows of this shape, and what changed since the last ones."""
        known = self._known.get(name) or self._latest(name)
        if known is not None and self.fits(shape, known):
            self._known[name] = known
            return known, None
        described = self._describe(name)
        if described is not None and self.fits(shape, described):
            new = self._intern(described)
        else:
            new = self._intern(self._made(name, shape, known or described))
        self._known[name] = new
        if known is None or known.fingerprint() == new.fingerprint():
            return new, None
        return new, ShapeChange(known, new, _rewritten(known, new, shape))

    def fits(self, shape: TableShape, schema: TableSchema) -> bool:
        """Rows of the shape can be read as rows of the schema."""
        if len(shape.columns) != len(schema.columns):
            return False
        # Debezium sorts the key's columns by their place in the table, where we do not.
        key = set() if schema.keyless else {column.name for column in schema.key_columns}
        if key and shape.key and set(shape.key) != key:
            return False
        return all(
            fits(carrier, column, long_times=self._long_times)
            for carrier, column in zip(shape.columns, schema.columns, strict=True)
        )

    def _made(self, name: TableName, shape: TableShape, like: TableSchema | None) -> TableSchema:
        """A schema of what Debezium says; columns that are as in ``like`` stay as they are."""
        known = {} if like is None else {column.name: column for column in like.columns}
        columns = []
        for carrier in shape.columns:
            column = known.get(carrier.name)
            if column is None or not fits(carrier, column, long_times=self._long_times):
                column = column_of(carrier, long_times=self._long_times)
            columns.append(column)
        places = {column.name: place for place, column in enumerate(columns)}
        key = tuple(places[part] for part in shape.key if part in places)
        return TableSchema(
            table=name,
            columns=tuple(columns),
            key=key or tuple(range(len(columns))),
            before_image=BeforeImage.FULL if like is None else like.before_image,
            keyless=not key,
        )


def _rewritten(old: TableSchema, new: TableSchema, shape: TableShape) -> bool:
    """Rows that are there already read otherwise now, and were not sent."""
    before = {column.name: column for column in old.columns}
    for carrier, column in zip(shape.columns, new.columns, strict=True):
        known = before.get(column.name)
        if known is None:
            if carrier.default or not carrier.optional:
                return True
        elif known.logical != column.logical:
            return True
    return False
