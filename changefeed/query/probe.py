"""Imports one Python function by name. As a program it prints the function's properties as JSON.

It is started without the current directory on the import path.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any


def load(reference: str, path: str) -> Callable[..., Any]:
    """The function of ``module:function``; ``path`` is a folder to look in last.

    Raises:
        ImportError, AttributeError: it is not there. TypeError: it is no function.
        Exception: what the module raises.
    """
    if path and path not in sys.path:
        sys.path.append(path)
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is not a function")
    made: Callable[..., Any] = found
    return made


def takes_arrow(function: Callable[..., Any]) -> bool:
    """Whether all its parameters are annotated as Arrow arrays."""
    names = [str(p.annotation) for p in inspect.signature(function).parameters.values()]
    return bool(names) and all("pyarrow" in name or "pa.Array" in name for name in names)


def can_take(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with ``count`` arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _probed(reference: str, path: str, count: str) -> dict[str, object]:
    try:
        function = load(reference, path)
        return {
            "vectorized": takes_arrow(function),
            "fits": can_take(function, int(count)),
            "parameters": str(inspect.signature(function)),
        }
    except Exception as failure:
        return {"error": f"{type(failure).__name__}: {failure}"}


if __name__ == "__main__":
    print(json.dumps(_probed(*sys.argv[1:4])))
