"""What Spark and the table formats raise, said as an error of this sink."""

from __future__ import annotations

import re
from collections.abc import Sequence

from changefeed.core.errors import ChangefeedError, Code
from sinks.lake.place import S3_FILES
from sinks.lake.types import BEYOND, UNFIT

# Py4J hands out an exception of Java as a text with the classes of all its causes. What is looked
# for below are such classes, error conditions of Spark and codes of stores; where a client has no
# class of its own for a failure, its words in English.

#: Conditions of Spark that mean: a value does not fit its column.
_VALUES = re.compile(
    r"\[(CAST_INVALID_INPUT|CAST_OVERFLOW\w*|NUMERIC_VALUE_OUT_OF_RANGE[\w.]*|"
    r"MALFORMED_RECORD_IN_PARSING[\w.]*|DATETIME_OVERFLOW|CONVERSION_INVALID_INPUT|"
    r"ARITHMETIC_OVERFLOW|CANNOT_PARSE_TIMESTAMP|INVALID_\w*DATETIME\w*)"
)
#: The error of :func:`sinks.lake.types.exact`, by Spark 4 and by Spark 3.5.
_UNFIT = re.compile(rf"(?:\[USER_RAISED_EXCEPTION\]|RuntimeException:) {UNFIT} (\d+)")
#: A row breaks a CHECK, or has NULL in a column that takes none.
_CONSTRAINTS = re.compile(
    r"DELTA_VIOLATE_CONSTRAINT\w*|DELTA_NOT_NULL_CONSTRAINT_VIOLATED|NOT_NULL_ASSERT_VIOLATION|"
    r"InvariantViolationException"
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
#: A NameNode that answers reads only: after its start, when blocks are missing, or on command.
_SAFE_MODE = re.compile(r"SafeModeException|[Nn]ame node is in safe mode")
#: What answers there does not speak as a NameNode does: its page of HTTP, for example.
_NO_NAMENODE = re.compile(r"RPC response exceeds maximum data length|RpcNoSuchProtocolException")
#: Classes of Amazon's SDK that are not loaded.
_NO_SDK = re.compile(r"NoClassDefFoundError: software[./]amazon")
_REFUSED = re.compile(
    r"AccessDenied|AccessControlException|NotAuthorizedException|ForbiddenException|"
    r"Permission denied|InvalidAccessKeyId|SignatureDoesNotMatch"
)


#: The piece of a statement that Spark blames, with dots where it was cut, and marks below it.
_BLAMED = re.compile(r"== SQL [^\n]*==\n(?P<line>[^\n]*)\n(?P<before> *)\^")


def _column(text: str, columns: Sequence[str]) -> str:
    """The column whose value does not fit, or whose cast failed: the merge's rows have
    ``c<number>`` for it; else empty."""
    number = _UNFIT.search(text)
    if number is None and (blamed := _BLAMED.search(text)) is not None:
        number = re.search(r"\bc(\d+)\b", blamed["line"][len(blamed["before"]) :])
    known = number is not None and int(number[1]) < len(columns)
    return columns[int(number[1])] if number and known else ""


def explained(
    failure: BaseException, name: str, where: str = "", columns: Sequence[str] = ()
) -> ChangefeedError | None:
    """The error for a failure, without the values Spark's own text repeats; None: no idea.

    Args:
        name: the target table it happened to; empty when it concerns none.
        where: the place of the tables, as it may be shown.
        columns: names of the columns of the rows that were written, in their order.
    """
    text = f"{type(failure).__name__}: {failure}"
    about = f"target {name}" if name else ""
    value = _VALUES.search(text)
    if value is not None or _UNFIT.search(text):
        column = _column(text, columns)
        what = f"column {column} of table {name}" if column else f"table {name}"
        return ChangefeedError(
            Code.SINK_REFUSED_DATA,
            f"a value of {what} does not fit the type of its column",
            detail=f"{about}: {value[1] if value else 'more digits than numeric_type allows'}",
            hint=BEYOND,
            about_row=True,
        )
    if _CONSTRAINTS.search(text):
        return ChangefeedError(
            Code.SINK_CANNOT_TAKE_TABLE,
            f"a row breaks a constraint of table {name}",
            detail=about,
            hint="change the row at the source, or drop the constraint; then RESUME.",
            about_row=True,
        )
    if _BUSY.search(text):
        return ChangefeedError(
            Code.SINK_BUSY, "another writer changed the table at the same time", detail=about
        )
    where = where or "the place of the tables"
    if _NO_SDK.search(text):
        return ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            f"{where} has its tables in S3, but Spark is not configured for S3",
            detail=about,
            hint=f"give the URI io-impl={S3_FILES}, and the jars for it are loaded.",
        )
    if _SAFE_MODE.search(text):
        return ChangefeedError(
            Code.SINK_BUSY,
            f"{where} accepts no writes: its NameNode is in safe mode",
            detail=about,
            hint="the NameNode leaves safe mode by itself when it knows its blocks; hdfs "
            "dfsadmin -safemode get shows the mode.",
        )
    if _NO_NAMENODE.search(text):
        return ChangefeedError(
            Code.SINK_UNREACHABLE,
            f"{where} does not answer as a NameNode",
            detail=about,
            hint="the address is that of the NameNode's RPC (fs.defaultFS of its cluster), not of "
            "its web page.",
        )
    if _REFUSED.search(text):
        return ChangefeedError(
            Code.SINK_REFUSED_LOGIN,
            f"{where} refuses access",
            detail=about,
            hint="check the credentials in the URI and the rights of the node's user.",
        )
    if _UNREACHABLE.search(text):
        return ChangefeedError(Code.SINK_UNREACHABLE, f"cannot reach {where}", detail=about)
    return None
