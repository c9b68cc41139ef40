"""Python functions in CDC queries: found, registered with Spark, called in its workers.

A function is called in Spark's Python workers, on Arrow columns. One whose parameters are
annotated ``pyarrow.Array`` gets the columns themselves; other functions get the values of one row
at a time, None for NULL. The process of a statement never imports the module: a Python process for
this purpose does (:mod:`.probe`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from changefeed.catalog.rows import Function
from changefeed.core.errors import ChangefeedError, Code
from changefeed.query.expressions import Expression
from changefeed.query.probe import load
from changefeed.spark.failure import pack
from changefeed.spark.internals.abilities import ARROW_FUNCTIONS, allows
from changefeed.spark.internals.arrow_types import (
    arrow_function,
    arrow_type,
    declared_type,
    parsed_type,
)
from grammar import nodes
from grammar.select import lexemes_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: A module that does not load in this time hangs.
PROBE_SECONDS = 60


def called(query: nodes.Query) -> set[str]:
    """The names of the functions that a query calls, in lower case."""
    names = set()
    for text in (query.items, query.where):
        tokens = lexemes_of(text)
        for place, token in enumerate(tokens[:-1]):
            if token.kind == "word" and tokens[place + 1].text == "(":
                names.add(token.text.lower())
    return names


def is_vectorized(reference: str, path: str, arguments: int) -> bool:
    """Whether ``module:function`` takes Arrow columns; imports it in another process.

    Raises:
        ChangefeedError: CF1204 it cannot be imported, is no function, or does not take as many
            arguments.
    """
    command = [sys.executable, "-P", "-m", "changefeed.query.probe", reference, path]
    command.append(str(arguments))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"{reference} cannot be used: its import takes over {PROBE_SECONDS} s",
        ) from None
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
    except ValueError:
        found = {"error": f"the import ended Python with status {done.returncode}"}
    if "error" in found:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"{reference} cannot be used: {found['error']}",
            hint="install the module where changefeed and Spark's workers run, or name its folder: "
            "AS 'module:function' PATH '/folder'.",
        )
    if not found["fits"]:
        given = f"{arguments} argument" + "s" * (arguments != 1)
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"{reference} cannot be called with {given}: its parameters are {found['parameters']}",
            hint="declare one argument for each parameter of the Python function.",
        )
    return bool(found["vectorized"])


def register(session: SparkSession, function: Function) -> None:
    """Register the function with a session under its name."""
    import pyarrow as pa
    from pyspark.sql.functions import udf

    kinds = [arrow_type(declared_type(kind)) for _, kind in function.arguments]
    returns = declared_type(function.returns)
    made = _evaluation(function, kinds, arrow_type(returns))
    called: Any
    if allows(session, ARROW_FUNCTIONS):
        # Spark reads from these that it is called with columns.
        made.__annotations__ = {"columns": pa.Array, "return": pa.Array}
        called = arrow_function(made, returns)
    else:

        def of_row(*values: Any) -> Any:
            arrays = (pa.array([value], kind) for value, kind in zip(values, kinds, strict=True))
            return made(*arrays)[0].as_py()

        called = udf(of_row, returns)
    session.udf.register(function.name, called)


def _evaluation(
    function: Function, kinds: Sequence[pa.DataType], returns: pa.DataType
) -> Callable[..., pa.Array]:
    """The function that a worker calls; its errors contain no value."""

    def evaluate(*columns: pa.Array) -> pa.Array:
        import pyarrow as pa

        try:
            call = load(function.reference, function.path)
        except Exception as failure:
            raise RuntimeError(pack(_unloadable(function, failure))) from None
        try:
            typed = [column.cast(kind) for column, kind in zip(columns, kinds, strict=True)]
            if function.vectorized:
                made = call(*typed)
                return made if isinstance(made, pa.Array) else pa.array(made, returns)
            rows = zip(*(column.to_pylist() for column in typed), strict=True)
            return pa.array([call(*row) for row in rows], returns)
        except Exception as failure:
            raise RuntimeError(pack(_raised(function, failure))) from None

    return evaluate


def _unloadable(function: Function, failure: Exception) -> ChangefeedError:
    return ChangefeedError(
        Code.VALUE_NOT_ENCODABLE,
        f"Spark's workers cannot import {function.reference}, which is function {function.name}: "
        f"{type(failure).__name__}",
        hint="install the module on every machine where Spark's workers run, then RESUME.",
        about_row=False,
    )


def _raised(function: Function, failure: Exception) -> ChangefeedError:
    return ChangefeedError(
        Code.VALUE_NOT_ENCODABLE,
        f"function {function.name} ({function.reference}) raised {type(failure).__name__} on a row",
        hint="mend the function or the row at the source, start the node again and RESUME.",
    )


def check_calls(expressions: Iterable[Expression], functions: Sequence[Function]) -> None:
    """Refuse calls with other arguments than declared: Spark would fail on the first row.

    Args:
        expressions: nodes of Spark's analysed expressions.
        functions: those of the query.

    Raises:
        ChangefeedError: CF1303.
    """
    known = {function.name: function for function in functions}
    for each in expressions:
        if each.kind != "PythonUDF":
            continue
        function = known.get(each.name.lower())
        given = len(each.children)
        if function is not None and given != len(function.arguments):
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"function {function.name} takes {len(function.arguments)} arguments, not {given}",
                hint=f"it is {function.signature}.",
            )
        if function is not None:
            for i, (name, kind) in enumerate(function.arguments):
                _check_cast(function, name, kind, each.children[i].json_type)


def _check_cast(function: Function, name: str, kind: str, found: str) -> None:
    import pyarrow as pa

    given = parsed_type(found)
    try:
        pa.array([], arrow_type(given)).cast(arrow_type(declared_type(kind)))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, TypeError):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"argument {name} of function {function.name} is {kind}, and "
            f"{given.simpleString()} cannot be cast to it",
            hint=f"it is {function.signature}.",
        ) from None
