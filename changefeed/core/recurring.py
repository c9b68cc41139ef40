"""The times of schedules: cron expressions, in UTC."""

from __future__ import annotations

import datetime as dt
import re

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

#: The largest step of each field: a larger one would mean once, not what it says.
_STEPS = {"minute": 59, "hour": 23, "day": 31, "month": 12, "day of the week": 7}


def next_time(expression: str, after: int) -> int:
    """The first time above ``after``; both are ns since 1970.

    Raises:
        ValueError: it is no such expression, or has no time.
    """
    # Loaded on use: only those who have schedules need it.
    from cronsim import CronSim, CronSimError

    fields = SHORT.get(expression.strip().lower(), expression)
    if (count := len(fields.split())) != len(_STEPS):
        raise ValueError(f"it has {count} fields, and needs {len(_STEPS)}")
    for field, (name, most) in zip(fields.split(), _STEPS.items(), strict=True):
        for step in re.findall(r"/(\d+)", field):
            if int(step) > most:
                raise ValueError(f"the step of the {name} is {step}, and may be {most} at most")
    begin = dt.datetime.fromtimestamp(after // 10**9, dt.UTC)
    try:
        found = next(CronSim(fields, begin))
    except CronSimError as error:
        raise ValueError(str(error).lower()) from None
    except StopIteration:
        raise ValueError("no day has this date") from None
    return int(found.timestamp()) * 10**9
