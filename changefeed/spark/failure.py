"""Turns exceptions of Spark into errors of changefeed.

Spark's own texts may quote row values, so they stay in the chained exception and never become part
of a message. A ChangefeedError raised in an executor arrives unchanged: its fields are in the text
of Spark's exception.
"""

from __future__ import annotations

import json
import re

from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.properties import is_local

#: Spark's error condition, as it begins the text of each exception in a chain of causes.
_CANCELLED = "[SPARK_JOB_CANCELLED]"
#: PySpark's condition when spark-submit ends before there is a session.
_NOT_STARTED = "JAVA_GATEWAY_EXITED"
#: The place of a node's log of Spark, for hints.
LOG = "spark.log in the state directory"
_MARK = re.compile(r"changefeed-error:(\{.*?\}):end", re.DOTALL)


def pack(error: ChangefeedError) -> str:
    """The error as text that :func:`unpack` finds again inside a longer text."""
    return f"changefeed-error:{json.dumps(_fields(error))}:end"


def unpack(text: str) -> ChangefeedError | None:
    """The last error packed in ``text``; None if there is none."""
    found = _MARK.findall(text)
    return _error(json.loads(found[-1])) if found else None


def _fields(error: ChangefeedError) -> dict[str, str]:
    return {
        "code": error.code.number,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "target": error.target,
    }


def _error(fields: dict[str, str]) -> ChangefeedError:
    return ChangefeedError(
        fields["code"],
        fields["message"],
        detail=fields["detail"],
        hint=fields["hint"],
        target=fields["target"],
    )


def translate(
    failure: BaseException, *, jvm_died: bool, master: str | None = None
) -> ChangefeedError:
    """The ChangefeedError for what Spark raised.

    Args:
        failure: an exception of pyspark or py4j.
        jvm_died: the JVM is known to be gone.
        master: of a session that was being started.
    """
    if jvm_died:
        return ChangefeedError(
            Code.SPARK_FAILED, "the JVM of Spark ended", hint="it is started again by itself."
        )
    text = str(failure)
    packed = unpack(text)
    if packed is not None:
        return packed
    if _CANCELLED in text:
        return ChangefeedError(Code.SPARK_FAILED, "the Spark job was cancelled")
    kind = kind_of(failure)
    if kind == _NOT_STARTED:
        return ChangefeedError(
            Code.SPARK_FAILED,
            "Spark could not be started: its JVM ended at once",
            hint=f"the end of {LOG} says why: for example --master or --conf is wrong.",
        )
    if master is not None:
        return ChangefeedError(
            Code.SPARK_FAILED,
            f"Spark could not be started with master {master}: {kind}",
            hint=f"check --master and --conf{_reached(master)}; {LOG} has the details.",
        )
    return ChangefeedError(
        Code.SPARK_FAILED, f"Spark failed: {kind}", hint=f"{LOG} has the details."
    )


def _reached(master: str) -> str:
    return "" if is_local(master) else ", and that the master runs and this machine reaches it"


def kind_of(failure: BaseException) -> str:
    """A name without values: Spark's error condition, or the class of the exception."""
    condition = getattr(failure, "getCondition", None)
    named = condition() if callable(condition) else None
    if named:
        return str(named)
    match = re.search(r"An error occurred while calling [^\n]*\n: ([\w.$]+)", str(failure))
    return _with_causes(match[1], str(failure)) if match else type(failure).__name__


#: The whole text of Java's "class not found" errors is the class's name, never a value.
_NO_CLASS = re.compile(r"\b(?:ClassNotFoundException|NoClassDefFoundError): ([\w.$/]+)(?=\s|$)")
#: A text of Java's own.
_NO_DRIVER = re.compile(r"java\.sql\.SQLException: No suitable driver$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: ([\w.$]+)", re.MULTILINE)


def _with_causes(kind: str, text: str) -> str:
    parts = [kind]
    causes = _CAUSE.findall(text)
    if causes and causes[-1] != kind:
        parts.append(f"caused by {causes[-1]}")
    if _NO_DRIVER.search(text):
        parts.append("no JDBC driver for the URL (its jar: --conf spark.jars=..)")
    missing = _NO_CLASS.search(text)
    if missing:
        parts.append(f"class {missing[1].replace('/', '.')} is missing")
    return ", ".join(parts)
