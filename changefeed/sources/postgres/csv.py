"""PostgreSQL's ``COPY ... TO STDOUT (FORMAT csv)`` as Arrow string columns.

The text of each value is what the replication stream would send too: one set of rules
(:mod:`changefeed.sources.postgres.values`) turns both into log form.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pa_csv

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.postgres.copyout import CopyBlock


def parse_csv(block: CopyBlock, columns: int) -> list[pa.StringArray]:
    """CSV without a header as string columns; NULL and '' stay apart.

    PostgreSQL writes NULL as nothing and the empty string as ``""``. A row of one NULL is an
    empty line, which is a row all the same.

    Raises:
        ChangefeedError: CF2202 the text is not UTF-8 (a SQL_ASCII database holds what it likes).
    """
    names = [str(i) for i in range(columns)]
    present = ["mark", *names] if block.marked else names
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(block.text)),
            read_options=pa_csv.ReadOptions(
                column_names=present, block_size=len(block.text) + 1, use_threads=False
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(
                include_columns=names,
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise ChangefeedError(
            Code.TABLE_NOT_SCANNABLE,
            "the table holds text that is not valid UTF-8",
            hint="the database's encoding is SQL_ASCII or its text was damaged: repair the rows.",
        ) from error
    return [column.combine_chunks() for column in table.columns]
