"""Changefeeds: sources, change log, planner, jobs, Spark stages.

Arrows point one way: ``shell -> changefeed -> grammar``; a sink sees only the
public types here (:mod:`changefeed.core.events`, :mod:`changefeed.core.schema`,
:mod:`changefeed.core.clock`, :mod:`changefeed.core.errors`, :mod:`changefeed.options`,
:mod:`changefeed.core.uri`) and a sink is reached only through
:mod:`sinks.registry`.

Programs use :func:`connect` or :func:`aconnect` to execute statements (:mod:`changefeed.dbapi`),
:func:`subscribe`, which returns the changes of a table as Arrow, :func:`attach`, which runs the
feeds of a state with the program's own Spark session, or :mod:`changefeed.spark_source`, which
makes them a Spark data source. In a notebook ``%load_ext changefeed`` makes ``%%changefeed``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from changefeed.core.version import __version__

if TYPE_CHECKING:
    from changefeed.attached_node import attach as attach
    from changefeed.dbapi import aconnect as aconnect
    from changefeed.dbapi import connect as connect
    from changefeed.dbapi.magic import load_ipython_extension as load_ipython_extension
    from changefeed.readers.subscription import subscribe as subscribe

__all__ = ["__version__", "aconnect", "attach", "connect", "subscribe"]

_LAZY = {
    "aconnect": "changefeed.dbapi",
    "attach": "changefeed.attached_node",
    "connect": "changefeed.dbapi",
    "load_ipython_extension": "changefeed.dbapi.magic",
    "subscribe": "changefeed.readers.subscription",
}


def __getattr__(name: str) -> object:
    """Loaded on use: the shell starts without Arrow."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
