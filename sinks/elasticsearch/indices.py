"""Indices of a feed: made when missing, given the fields of new columns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema
from sinks.base import SinkContext, Target
from sinks.elasticsearch import mapping
from sinks.elasticsearch.bulk import Bulk
from sinks.elasticsearch.client import Cluster, HttpAnswer, path_of, readable
from sinks.elasticsearch.options import ElasticsearchSettings
from sinks.elasticsearch.sweep import delete_all
from sinks.ownership import Claim, Owner, claim, living

_TABLE, _OWNER, _FEED = "table", "owner", "feed"


class Indices:
    """Remembers which indices are ready for which shape of a table."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ElasticsearchSettings,
        sender: Callable[[], Bulk],
        context: SinkContext | None = None,
    ) -> None:
        """``sender`` gives what sends documents, for an index whose documents go first."""
        self.context = context
        self._sender = sender
        self._cluster = cluster
        self._settings = settings
        self._ready: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Look at the indices again, because another program may have changed them."""
        self._ready.clear()

    def prepare(self, target: Target, schema: TableSchema, sample: bytes | None) -> None:
        """Make the index, or give it the fields it does not have.

        Args:
            sample: one document of the batch, which shows the columns that the feed delivers; None
                when it holds deletes only.

        Raises:
            ChangefeedError: CF5003 the table cannot be in this index; else as a request.
        """
        key = (target.topic, schema.fingerprint() if sample is not None else "")
        if key in self._ready:
            return
        with self._lock:
            shape = mapping.NO_ROWS
            if sample is not None:
                shape = mapping.shape_of(sample, self._settings.envelope)
            _check_names(target, schema, shape)
            self._follow(target, schema, shape)
            self._ready.add(key)

    def strangers(self, targets: Iterable[Target]) -> list[ChangefeedError]:
        """What stands against rows of these tables in the indices there are."""
        found: list[ChangefeedError] = []
        for target in targets:
            try:
                for name, there in (self._mappings(target) or {}).items():
                    self._claim(target, name, there)
            except ChangefeedError as error:
                if error.action is Action.RETRY:
                    raise
                found.append(error)
        return found

    def _follow(self, target: Target, schema: TableSchema, shape: mapping.DocumentShape) -> None:
        wanted = mapping.properties(schema, shape, self._settings.json)
        found = self._mappings(target)
        if found is None:
            self._make(target, wanted)
            found = self._mappings(target) or {}
        self._take(target, found)
        for there in found.values():
            self._check(target, schema, shape, there)
            more = mapping.missing(wanted, there.get("properties") or {})
            if more:
                answer = self._cluster.call(
                    "PUT", path_of(target.topic, "_mapping"), {"properties": more}
                )
                if not answer.ok:
                    raise self._refused(answer, target, "give it the fields of new columns")

    def claim(self, target: Target) -> None:
        """Check that the index, if there is one, is the feed's, or make it so.

        Raises:
            ChangefeedError: CF5008, it belongs to another feed.
        """
        self._take(target, self._mappings(target) or {})

    def _take(self, target: Target, found: Mapping[str, Any]) -> None:
        for name, there in found.items():
            claimed = self._claim(target, name, there)
            mark = self._mark(target)
            meta = there.get("_meta") or {}
            if claimed is Claim.REPLACE:
                delete_all(self._cluster, self._sender(), target)
            if meta.get("changefeed") != mark:
                body = {"_meta": {**meta, "changefeed": mark}}
                answer = self._cluster.call("PUT", path_of(name, "_mapping"), body)
                if not answer.ok:
                    raise self._refused(answer, target, "mark the index")

    def _claim(self, target: Target, name: str, there: Mapping[str, Any]) -> Claim:
        context = self._opened
        own = Owner.of(context, target)
        return claim(
            own,
            _marks(there),
            feeds=living(context),
            policy=self._settings.existing,
            exists=True,
            holds_rows=lambda: self._holds_documents(target, name),
            what=f"index {name}",
        )

    @property
    def _opened(self) -> SinkContext:
        if self.context is None:
            raise AssertionError("open comes first")
        return self.context

    def _mark(self, target: Target) -> dict[str, str]:
        own = Owner.of(self._opened, target)
        return {_TABLE: own.table, _OWNER: own.text, _FEED: own.feed}

    def _holds_documents(self, target: Target, name: str) -> bool:
        answer = self._cluster.call("GET", path_of(name, "_count"))
        if not answer.ok:
            raise self._refused(answer, target, "count the documents of the index")
        with readable():
            return bool(answer.json().get("count"))

    def _make(self, target: Target, wanted: Mapping[str, mapping.FieldMapping]) -> None:
        """Make the index unless it was made meanwhile, with room for fields and none yet. Fields
        named here would replace those that an index template has for the same columns."""
        body = {
            "settings": mapping.settings(wanted),
            "mappings": {
                # What is not a column is kept and not indexed: nothing here can clash with it.
                "dynamic": False,
                "_meta": {"changefeed": self._mark(target)},
            },
        }
        answer = self._cluster.call("PUT", path_of(target.topic), body)
        if not answer.ok and answer.error_type != "resource_already_exists_exception":
            raise self._refused(answer, target, "make the index")

    def exists(self, target: Target) -> bool:
        """Whether the index of a target is there."""
        return self._mappings(target) is not None

    def _mappings(self, target: Target) -> dict[str, Any] | None:
        answer = self._cluster.call("GET", path_of(target.topic, "_mapping"))
        if answer.status == 404:
            return None
        if not answer.ok:
            raise self._refused(answer, target, "read the mapping of the index")
        with readable():
            return {name: _mapping(found) for name, found in answer.json().items()}

    def _check(
        self,
        target: Target,
        schema: TableSchema,
        shape: mapping.DocumentShape,
        there: Mapping[str, Any],
    ) -> None:
        fields = there.get("properties") or {}
        for image in shape.rows[:1]:
            fields = (fields.get(image) or {}).get("properties") or {}
        wrong = mapping.clashes(schema, shape.columns, fields)
        if wrong:
            listed = ", ".join(
                f'column "{c.column}" is {c.type_name}, the field is {c.field_type}' for c in wrong
            )
            raise ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"index {target.topic} cannot take the rows of {target.table} as they are now: "
                f"{listed}",
                hint="the type of a field cannot be changed: DROP the feed, remove the index (or "
                "choose another by FOR table AS name), and CREATE the feed again.",
            )

    def _refused(self, answer: HttpAnswer, target: Target, what: str) -> ChangefeedError:
        return self._cluster.refusal(answer, f"{what} {target.topic} (table {target.table})")


def _marks(there: Mapping[str, Any]) -> list[Owner]:
    found = (there.get("_meta") or {}).get("changefeed") or {}
    owner = found.get(_OWNER)
    return [Owner.parse(str(owner), str(found.get(_FEED) or ""))] if owner else []


def _check_names(target: Target, schema: TableSchema, shape: mapping.DocumentShape) -> None:
    if schema.keyless:
        raise ChangefeedError(
            Code.SINK_REFUSED_DATA,
            f"table {target.table} has no key, so its rows cannot be documents of {target.topic}",
            hint="give the table a primary key (PostgreSQL: or REPLICA IDENTITY USING INDEX).",
        )
    wrong = sorted(shape.columns & mapping.RESERVED) if not shape.rows else []
    if wrong:
        raise ChangefeedError(
            Code.SINK_REFUSED_DATA,
            f"a field of index {target.topic} cannot be called {', '.join(wrong)}",
            detail=f"table {target.table}",
            hint="leave the column out with a column list, or use envelope = 'wrapped'.",
        )


def one_index_each(targets: tuple[Target, ...]) -> None:
    """Two tables in one index would overwrite each other's documents.

    Raises:
        ChangefeedError: CF5003, naming them.
    """
    owner: dict[str, TableName] = {}
    for target in targets:
        other = owner.setdefault(target.topic, target.table)
        if other != target.table:
            raise ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"tables {other} and {target.table} would share the index {target.topic}",
                hint="give one another index by FOR table AS name, or use full_table_name.",
            )


def _mapping(found: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an index, whose fields and marks have the shape that is read later.

    Raises:
        TypeError: it has another.
    """
    made: dict[str, Any] = _object(found.get("mappings"))
    _check_fields(made)
    meta = _object(made.get("_meta"))
    if isinstance(meta.get("changefeed"), list | str | int | float):
        raise TypeError("a mark that is no object")
    return made


def _check_fields(found: Mapping[str, Any]) -> None:
    for field in _object(found.get("properties")).values():
        _check_fields(_object(field))


def _object(found: Any) -> dict[str, Any]:
    if found is not None and not isinstance(found, dict):
        raise TypeError("JSON that is no object")
    return found or {}
