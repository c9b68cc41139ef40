"""Rows of one table without what belongs to their transactions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.sources.decoded.spans import Mask, Places

Operations = npt.NDArray[np.uint8]

#: Operations of the log as bytes.
CREATED, UPDATED, DELETED = ord("c"), ord("u"), ord("d")


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of one table without what belongs to their transactions.

    Attributes:
        message: for each row, which of the messages it came from (rising; an update that
            changed the key gives two rows, ``d`` then ``c``).
        op: :data:`CREATED`, :data:`UPDATED` or :data:`DELETED`.
        after: a value array for each column; null on deletes.
        before: for each of ``schema.before_ordinals``; null on inserts.
        key: for each of ``schema.key``, the key the row is about.
        unchanged: by column position, the rows whose value the source did not send.
    """

    message: Places
    op: Operations
    after: list[pa.Array]
    before: list[pa.Array]
    key: list[pa.Array]
    unchanged: dict[int, Mask] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.op)
