"""The times of schedules: cron expressions, in UTC."""

from __future__ import annotations

import datetime as dt

#: Names of expressions.
SHORT = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def next_time(expression: str, after: int) -> int:
    """The first time above ``after``; both are ns since 1970.

    Raises:
        ValueError: it is no such expression, or has no time.
    """
    # Loaded on use: only those who have schedules need it.
    from cronsim import CronSim, CronSimError

    fields = SHORT.get(expression.strip().lower(), expression)
    if len(fields.split()) != 5:
        raise ValueError("a cron expression has five fields")
    begin = dt.datetime.fromtimestamp(after // 10**9, dt.UTC)
    try:
        found = next(CronSim(fields, begin))
    except CronSimError as error:
        raise ValueError(str(error).lower()) from None
    except StopIteration:
        raise ValueError("no day has this date") from None
    return int(found.timestamp()) * 10**9
