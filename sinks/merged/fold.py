"""A round folded: which of its changes a table still needs, and where their values are.

Every store receives changes that are folded here, so that it loads no row that a later one
replaces, meets each key once, and knows which values the source did not send. The work is done on
numbers of rows in whole columns: no Python per row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.types import FLOATS, Kind
from sinks.merged.policy import MergeMode
from sinks.merged.rows import plain_decimals

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: In a floating-point number, or in an array of such, in log form.
NEGATIVE_ZERO = r"-0([,\]]|$)"
#: Instead of the number of a row: the round does not have the value, that of the target stays.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class RoundChanges:
    """The changes of a table in a round, in the order of the log.

    Attributes:
        keys: a number for each row; rows of one key have the same (:func:`groups_of`).
        versions: the version of each row.
        gone, updates: the row is a DELETE, an UPDATE.
        lacks: place of a column -> the source did not send its value.
    """

    keys: Numbers
    versions: Numbers
    gone: Flags
    updates: Flags
    lacks: Mapping[int, Flags]


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """What is left of a round.

    Attributes:
        rows: numbers of the rows that stay, rising.
        values: place of a column that a row lacks -> for each row that stays the number of the row
            that has its value, or :data:`UNKNOWN`.
    """

    rows: Numbers
    values: Mapping[int, Numbers]

    def at(self, places: Numbers | slice) -> FoldedRows:
        """Some of the rows that stay, or all of them in another order."""
        values = {place: numbers[places] for place, numbers in self.values.items()}
        return FoldedRows(self.rows[places], values)


@dataclass(frozen=True, slots=True)
class RoundForm:
    """How a table of the changes of a round is laid out.

    Attributes:
        version, operation, missing: names of columns; ``missing`` has the places of what the source
            did not send, ``,3,7,``, or NULL.
        deleted, updated: the ``operation`` of a DELETE, of an UPDATE.
        columns: the names of the source's columns, by place.
    """

    version: str
    operation: str
    missing: str
    deleted: str
    updated: str
    columns: Sequence[str]

    def fold(self, rows: pa.Table, keys: Numbers, mode: MergeMode) -> FoldedRows:
        """What a table kept in ``mode`` needs of ``rows``, which are in the order of the log.

        Args:
            keys: see :attr:`RoundChanges.keys`.
        """
        operation, missing = rows[self.operation], rows[self.missing]
        lacks = {
            place: pc.fill_null(pc.match_substring(missing, f",{place},"), False).to_numpy()
            for place in sorted(lacking(missing))
        }
        gone, updates = (pc.equal(operation, word) for word in (self.deleted, self.updated))
        versions = rows[self.version].to_numpy()
        return fold(RoundChanges(keys, versions, gone.to_numpy(), updates.to_numpy(), lacks), mode)

    def take(self, rows: pa.Table, folded: FoldedRows) -> pa.Table:
        """The folded ones of ``rows``, with their values and what is still missing."""
        taken, texts = gather(rows, folded.rows), [pa.scalar("")]
        for place, numbers in folded.values.items():
            column = taken.schema.get_field_index(self.columns[place])
            values = gather(rows.select([column]), numbers)
            taken = taken.set_column(column, values.field(0), values.column(0))
            texts.append(pc.if_else(pa.array(numbers == UNKNOWN), f"{place},", ""))
        if not folded.values:
            return taken
        joined = pc.binary_join_element_wise(*texts, "")
        whole = pc.binary_join_element_wise(",", joined, "")
        missing = pc.if_else(pc.equal(joined, ""), pa.scalar(None, pa.string()), whole)
        column = taken.schema.get_field_index(self.missing)
        return taken.set_column(column, self.missing, missing)


def lacking(missing: pa.ChunkedArray) -> frozenset[int]:
    """Places of the columns that are missing in some row (:attr:`RoundForm.missing`)."""
    if missing.null_count == len(missing):
        return frozenset()
    texts = pc.unique(missing).drop_null().to_pylist()
    return frozenset(int(place) for text in texts for place in text.split(",") if place)


def places_missing(
    missing: pa.ChunkedArray, names: Sequence[str], key: Sequence[int]
) -> pa.ChunkedArray | pa.Array:
    """The log's ``["b","c"]`` as places of columns, ``,1,2,``; there are few different ones. A
    column of the key is never among them."""
    if missing.null_count == len(missing):
        return pa.nulls(len(missing), pa.string())
    places = {name: place for place, name in enumerate(names) if place not in key}
    encoded = missing.dictionary_encode().combine_chunks()
    texts = [
        "," + "".join(f"{places[name]}," for name in json.loads(text) if name in places)
        for text in encoded.dictionary.to_pylist()
    ]
    return pa.array(texts, pa.string()).take(encoded.indices)


def fold(changes: RoundChanges, mode: MergeMode) -> FoldedRows:
    """What a table kept in ``mode`` needs of the changes.

    ``MERGE`` needs the last change of each key, with the last value of each column that is known.
    A DELETE ends what was known: a later row of its key, by a changed key, has nothing to do with
    the one before. ``VERSIONS`` needs the last change of each key and version, ``APPEND`` every
    change; a value that an update lacks is that of the change before. The insert that begins what
    a transaction did to its key lacks values where it is a changed key: what was there before has
    another key, and the value is NULL.
    """
    numbers = np.arange(len(changes.keys))
    rows = numbers
    if mode is MergeMode.MERGE:
        rows = _last(changes.keys, numbers)
    elif mode is MergeMode.VERSIONS:
        rows = _last(_joined(changes.keys, _codes(pa.array(changes.versions))), numbers)
    if not changes.lacks:
        return FoldedRows(rows, {})
    find = _last_known if mode is MergeMode.MERGE else _carried
    values = {place: found[rows] for place, found in find(changes).items()}
    return FoldedRows(rows, values)


def last_of_each(keys: Numbers) -> Numbers:
    """Numbers of the rows that no later row of the same key follows, rising."""
    return _last(keys, np.arange(len(keys)))


def groups_of(columns: Sequence[pa.ChunkedArray], kinds: Sequence[Kind]) -> Numbers:
    """A number for each row; those that are equal in all columns have the same.

    Args:
        columns: values in log form.
        kinds: what the target keeps each column as, of arrays their elements; of a text ``TEXT``,
            whatever it is at the source. Numbers that are equal are one, whatever their digits.
    """
    found: Numbers = np.zeros(len(columns[0]), np.int64)
    for place, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        if kind is Kind.DECIMAL:
            column = plain_decimals(column)
        elif kind in FLOATS:
            column = pc.replace_substring_regex(column, NEGATIVE_ZERO, r"0\1")
        codes = _codes(column)
        found = _joined(found, codes) if place else codes
    return found


def gather(table: pa.Table, numbers: Numbers) -> pa.Table:
    """The rows at these numbers, NULL at :data:`UNKNOWN`. Never joins the chunks of a table, which
    may be files of a size that does not fit into memory."""
    chunks = table.to_batches()
    if len(chunks) == 1:
        return pa.Table.from_batches([chunks[0].take(pa.array(numbers, mask=numbers < 0))])
    order = np.argsort(numbers, kind="stable")
    rising = numbers[order]
    ends = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)
    cuts = np.searchsorted(rising, np.concatenate(([0], ends)))
    pieces = [pa.table([pa.nulls(int(cuts[0]), f.type) for f in table.schema], table.schema)]
    for chunk, begin, end, last in zip(chunks, cuts, cuts[1:], ends, strict=False):
        numbered = pa.array(rising[begin:end] - (last - len(chunk)))
        pieces.append(pa.Table.from_batches([chunk.take(numbered)]))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return pa.concat_tables(pieces).combine_chunks().take(pa.array(places))


def _codes(values: pa.ChunkedArray | pa.Array) -> Numbers:
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _joined(left: Numbers, right: Numbers) -> Numbers:
    """A number for each pair, below the count of rows again."""
    return _codes(pa.array(left * (int(right.max(initial=0)) + 1) + right))


def _last(groups: Numbers, numbers: Numbers) -> Numbers:
    """Of each group the largest of ``numbers``, which rise; sorted."""
    return np.sort(_by_group(groups, numbers, numbers))


def _by_group(groups: Numbers, some: Numbers, numbers: Numbers) -> Numbers:
    """The last of the rows ``some`` in each group; :data:`UNKNOWN` in a group without any."""
    found = np.full(int(groups.max(initial=UNKNOWN)) + 1, UNKNOWN, np.int64)
    found[groups[some]] = numbers[some]  # of several numbers for one place the last one counts
    return found


def _last_known(changes: RoundChanges) -> dict[int, Numbers]:
    numbers = np.arange(len(changes.keys))
    return {
        place: _by_group(changes.keys, np.flatnonzero(changes.gone | ~lacks), numbers)[changes.keys]
        for place, lacks in changes.lacks.items()
    }


def _carried(changes: RoundChanges) -> dict[int, Numbers]:
    """For each row the row of its key, at or before it, that has the value of a column."""
    order = np.argsort(changes.keys, kind="stable")
    numbers = np.arange(len(order))
    keys, versions = changes.keys[order], changes.versions[order]
    begins, fresh = np.ones(len(order), np.bool_), np.ones(len(order), np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    fresh[1:] = begins[1:] | (versions[1:] != versions[:-1])
    first = np.maximum.accumulate(np.where(begins, numbers, 0))
    goes_on = changes.updates[order] | ~(changes.gone[order] | fresh)
    found = {}
    for place, lacks in changes.lacks.items():
        last = np.maximum.accumulate(np.where(lacks[order] & goes_on, UNKNOWN, numbers))
        values: Numbers = np.empty(len(order), np.int64)
        values[order] = np.where(last >= first, order[last], UNKNOWN)
        found[place] = values
    return found
