"""Packages that only some installations have, and the error that names what to install.

``pip install changefeed`` brings no PySpark and no client of a warehouse. What needs one asks here
before it begins: the answer costs a look at the path of modules, and imports nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from changefeed.core.errors import ChangefeedError, Code

#: The name of our distribution, which has the extras.
DISTRIBUTION = "changefeed"


def installed(package: str) -> bool:
    """Whether the package of this import name is there; it is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False


def needs_package(
    what: str,
    package: str,
    extra: str = "",
    *,
    code: Code = Code.SINK_NEEDS_EXTRA,
    distribution: str = DISTRIBUTION,
) -> ChangefeedError:
    """The error that ``what`` needs a package of this import name, with the command to install it.

    Args:
        what: the subject of the sentence, as ``delta://`` or ``a CDC query``.
        package: its import name.
        extra: the extra of ``distribution`` that brings it; empty: the package itself is named.
        code: the error's code.
        distribution: who has the extra.
    """
    if not extra:
        name = package.partition(".")[0].replace("_", "-")
        return ChangefeedError(
            code, f"{what} needs {name}, which is not installed", hint=f"pip install '{name}'"
        )
    # SHOW has only the message of an error, so that names the extra, too.
    wanted = f"{distribution}[{extra}]"
    return ChangefeedError(
        code,
        f"{what} needs {wanted}: the package {package} is not installed",
        hint=f"pip install '{wanted}'",
    )


def lacking(
    what: str, packages: Sequence[str], extra: str, *, code: Code = Code.SINK_NEEDS_EXTRA
) -> ChangefeedError | None:
    """The error of :func:`needs_package` for the first package that is not there, if one is not."""
    missing = next((package for package in packages if not installed(package)), None)
    return None if missing is None else needs_package(what, missing, extra, code=code)


def spark_lacking(what: str) -> ChangefeedError | None:
    """The error that ``what`` needs Spark (CF4003), if PySpark is not installed here."""
    return lacking(what, ("pyspark",), "spark", code=Code.SPARK_NOT_AVAILABLE)


def require_spark(what: str) -> None:
    """Stop what cannot do without Spark.

    Raises:
        ChangefeedError: CF4003, PySpark is not installed.
    """
    missing = spark_lacking(what)
    if missing is not None:
        raise missing
