"""What Spark and the table formats raise, said as an error of this sink."""

from __future__ import annotations

import re

from changefeed.errors import ChangefeedError

#: Conditions of Spark that mean: a value does not fit its column.
_VALUES = re.compile(
    r"\[(CAST_INVALID_INPUT|CAST_OVERFLOW\w*|NUMERIC_VALUE_OUT_OF_RANGE[\w.]*|"
    r"MALFORMED_RECORD_IN_PARSING[\w.]*|DATETIME_OVERFLOW|CONVERSION_INVALID_INPUT|"
    r"ARITHMETIC_OVERFLOW|CANNOT_PARSE_TIMESTAMP|INVALID_\w*DATETIME\w*)"
)
#: Somebody else wrote to the table at the same time.
_BUSY = re.compile(
    r"ConcurrentModification|ConcurrentAppend|ConcurrentDelete|ConcurrentWrite|"
    r"ConcurrentTransaction|CommitFailedException|ValidationException: Found conflicting|"
    r"DELTA_CONCURRENT_"
)
_UNREACHABLE = re.compile(
    r"ConnectException|UnknownHostException|SocketTimeoutException|NoRouteToHost|"
    r"ServiceUnavailable|ServiceFailureException|RESTException|ConnectTimeout"
)
_REFUSED = re.compile(
    r"AccessDenied|AccessControlException|NotAuthorizedException|ForbiddenException|"
    r"Permission denied|InvalidAccessKeyId|SignatureDoesNotMatch"
)


def told(failure: BaseException, name: str) -> ChangefeedError | None:
    """The error for a failure, without the values Spark's own text repeats; None: no idea.

    Args:
        name: the target table it happened to; empty when it concerns none.
    """
    text = f"{type(failure).__name__}: {failure}"
    about = f"target {name}" if name else ""
    value = _VALUES.search(text)
    if value is not None:
        return ChangefeedError(
            "CF5003",
            f"a value of table {name} does not fit the type of its column",
            detail=f"{about}: {value[1]}",
            hint="infinity, BC dates and NaN in a numeric have no place in these types: select "
            "the column as text (col::text), or leave it out.",
        )
    if _BUSY.search(text):
        return ChangefeedError(
            "CF5004", "another writer changed the table at the same time", detail=about
        )
    if _REFUSED.search(text):
        return ChangefeedError(
            "CF5002",
            "the place of the tables refuses access",
            detail=about,
            hint="check the credentials in the URI and the rights of the node's user.",
        )
    if _UNREACHABLE.search(text):
        return ChangefeedError("CF5001", "cannot reach the place of the tables", detail=about)
    return None
