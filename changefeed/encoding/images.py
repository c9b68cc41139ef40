"""The two sides of a stretch of log rows: the row after a change, and the row before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, reduce

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.shapes import Deletes
from changefeed.encoding.json_tokens import Part, chosen, joined, json_token, separated, string
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.transactions import ORDERS, transaction_ids
from changefeed.encoding.unsent import UNSENT, marked_name, unsent_name


class TokenRows:
    """Log rows of one table version with the tokens of their columns, each made once.

    Args:
        plan: what the messages look like.
        batch: rows of the log's schema, all of them messages.
        clean: columns (``a3``, ``b0``) whose text never needs escaping in JSON.
        now_ns: the time of encoding (enriched: ``ts_ns``).
        scan: the rows were read by a scan: none is a delete, none has a side before.
    """

    def __init__(
        self,
        plan: MessagePlan,
        batch: pa.RecordBatch,
        clean: frozenset[str],
        now_ns: int,
        *,
        scan: bool = False,
    ) -> None:
        self.plan = plan
        self.now_ns = now_ns
        self.count = batch.num_rows
        self.scan = scan
        self.known = frozenset(() if scan else plan.schema.before_ordinals)
        self._batch = batch
        self._clean = clean
        self._tokens: dict[str, list[Part]] = {}

    # -- columns --------------------------------------------------------------------------

    def column(self, name: str) -> pa.Array:
        """A column of the log."""
        return self._batch.column(name)

    def token(self, side: str, i: int) -> list[Part]:
        """The JSON tokens of a column; ``null`` where the log has no such column."""
        if side == "b" and i not in self.known:
            return ["null"]
        name = f"{side}{i}"
        if name not in self._tokens:
            token = json_token(
                self.plan.schema.columns[i],
                self.column(name),
                clean=name in self._clean,
                null_as_object=self.plan.json_null_as_object,
            )
            if side == "a" and marked_name(i) in self._batch.schema.names:
                marked = self.column(marked_name(i))
                token = [pc.if_else(marked, f'"{UNSENT}"', joined(token, self.count))]
            self._tokens[name] = token
        return self._tokens[name]

    def member(self, side: str, i: int) -> list[Part]:
        """A member of a JSON object: ``"b": "y"``."""
        return [f"{self.name(i)}: ", *self.token(side, i)]

    def object(self, side: str, columns: Sequence[int]) -> list[Part]:
        """``{"a": 1, "b": "y"}``, without the values that are left out."""
        members = [(self.member(side, i), self.left_out(side, i)) for i in columns]
        return chosen(members, "{", "}", self.count)

    def left_out(self, side: str, i: int) -> pa.Array | None:
        """In which rows the member is missing because its value was not sent; None: in none."""
        name = unsent_name(i)
        return self.column(name) if side == "a" and name in self._batch.schema.names else None

    def name(self, i: int) -> str:
        """The name of a column as a JSON string."""
        return string(self.plan.schema.columns[i].name)

    def key(self, side: str) -> list[Part]:
        """``[1, "x"]``, or an object in the enriched envelope."""
        columns = self.plan.message_key
        if self.plan.key_is_object:
            return self.object(side, columns)
        return separated([self.token(side, i) for i in columns], "[", "]")

    # -- kinds of rows --------------------------------------------------------------------

    def choose(self, text: Callable[[str], pa.Array]) -> pa.Array:
        """``text("a")`` for changes, ``text("b")`` for deletes."""
        if self._deletes == 0:
            return text("a")
        if self._deletes == self.count:
            return text("b")
        return pc.if_else(self._is_delete, text("b"), text("a"))

    @cached_property
    def _is_delete(self) -> pa.Array:
        return pc.equal(self.column("op"), "d")

    @cached_property
    def _deletes(self) -> int:
        if self.plan.deletes is Deletes.NO:
            return 0
        return int(pc.sum(self._is_delete).as_py() or 0)

    def before(self, side: str) -> list[Part]:
        """The row before the change: of every delete, never of a scan or of an inserted row."""
        if not self.known:
            return ["null"]
        image = self.object("b", self.plan.before_columns)
        if side == "b":
            return image
        if not pc.any(self.had_before).as_py():
            return ["null"]
        return [pc.if_else(self.had_before, joined(image, self.count), "null")]

    def unchanged(self, i: int) -> pa.Array:
        """In which rows the column ``i``, whose value before is known, did not change."""
        after, before = self.column(f"a{i}"), self.column(f"b{i}")
        both_null = pc.and_(pc.is_null(after), pc.is_null(before))
        same = pc.or_(both_null, pc.fill_null(pc.equal(after, before), False))
        return pc.and_(self.had_before, same)

    @cached_property
    def had_before(self) -> pa.Array:
        """Where there was a row before; for changes that are no deletes.

        A key column of a row is never NULL. Without a key all columns are checked.
        """
        key = [self.column(f"b{i}").is_valid() for i in self.plan.schema.key if i in self.known]
        return reduce(pc.or_, key) if key else pa.array([False] * self.count)

    # -- metadata -------------------------------------------------------------------------

    @cached_property
    def commit_time(self) -> list[Part]:
        """``1536242855577149065.0000000000``; see :class:`changefeed.core.clock.Timestamp`."""
        logical = self.column("logical")
        if not pc.any(pc.not_equal(logical, 0)).as_py():
            return [self.wall, f".{'0' * 10}"]
        return [self.wall, ".", pc.utf8_lpad(logical.cast(pa.string()), 10, "0")]

    @property
    def numbered(self) -> bool:
        """Whether the rows have :data:`ORDERS`, their places in their transactions."""
        return self.plan.transactions and not self.scan

    def transaction(self, gap: str) -> list[Part]:
        """``{"id": "571:1536242855577149065.0000000000", "total_order": 1, ..}``, with ``gap``
        after colons and commas; null for a scan."""
        if not self.numbered:
            return ["null"]
        total, own = (self.column(name).cast(pa.string()) for name in ORDERS)
        return [
            f'{{"id":{gap}"',
            *transaction_ids(self.column("xid"), self.commit_time),
            f'",{gap}"total_order":{gap}',
            total,
            f',{gap}"data_collection_order":{gap}',
            own,
            "}",
        ]

    @cached_property
    def wall(self) -> pa.Array:
        """The wall time of the commit in nanoseconds, as text."""
        return self.column("wall").cast(pa.string())

    @property
    def operation(self) -> pa.Array:
        """``u`` or ``c``, for rows that are no deletes."""
        return pc.if_else(pc.equal(self.column("op"), "u"), "u", "c")
