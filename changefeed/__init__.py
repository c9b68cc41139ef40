"""The engine of changefeeds: sources, change log, planner, jobs, Spark stages.

Arrows point one way: ``shell -> changefeed -> grammar``; a sink sees only the
public types here (:mod:`changefeed.events`, :mod:`changefeed.schema`,
:mod:`changefeed.clock`, :mod:`changefeed.errors`, :mod:`changefeed.options`,
:mod:`changefeed.uri`) and the engine reaches a sink only through
:mod:`sinks.registry`.
"""

__version__ = "0.1.0"
