"""Sources: where changes come from.

One package per kind of database behind the protocol :class:`changefeed.sources.base.Source`;
:mod:`changefeed.sources.registry` finds it by the scheme of the connection's URI.
"""
