"""What VERIFY found, as the text of a node's answer."""

from __future__ import annotations

import json
from typing import Any

from changefeed.statements.context import Result
from changefeed.statements.inquiry import error_of, told


def result_text(result: Result) -> str:
    """What VERIFY found, as an answer: the inverse of :func:`result_of`."""
    failure = None if result.failure is None else told(result.failure)
    return json.dumps(
        {
            "columns": result.columns,
            "rows": result.rows,
            "notices": result.notices,
            "tag": result.tag,
            "failure": failure,
        }
    )


def result_of(text: str) -> Result:
    """What VERIFY found, from an answer of :func:`result_text`."""
    data: dict[str, Any] = json.loads(text)
    return Result(
        columns=tuple(data["columns"]),
        rows=[tuple(row) for row in data["rows"]],
        notices=data["notices"],
        tag=data["tag"],
        failure=None if data["failure"] is None else error_of(data["failure"]),
    )
