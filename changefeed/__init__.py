"""The engine of changefeeds: sources, change log, planner, jobs, Spark stages.

Arrows point one way: ``shell -> changefeed -> grammar``; a sink sees only the
public types here (:mod:`changefeed.core.events`, :mod:`changefeed.core.schema`,
:mod:`changefeed.core.clock`, :mod:`changefeed.core.errors`, :mod:`changefeed.options`,
:mod:`changefeed.core.uri`) and the engine reaches a sink only through
:mod:`sinks.registry`.
"""

__version__ = "0.1.0"
