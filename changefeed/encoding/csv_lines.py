"""Values as lines of CSV: the columns of the row and nothing else."""

from __future__ import annotations

import pyarrow as pa

from changefeed.encoding.images import TokenRows
from changefeed.encoding.json_tokens import Part, csv_token, joined
from changefeed.encoding.message_format import MessageFormat


class CsvFormat(MessageFormat):
    """``format = 'csv'``."""

    def values(self, rows: TokenRows) -> pa.Array:
        parts: list[Part] = []
        for i in rows.plan.columns:
            field = csv_token(rows.plan.schema.columns[i], rows.column(f"a{i}"))
            parts += [",", field] if parts else [field]
        return joined(parts, rows.count)
