"""Rows as a source's log has them: what every source does with them until they are changes.

A source decodes into :class:`~changefeed.sources.decoded.rows.DecodedRows`. Several writes of one
key in one transaction become one change in :mod:`.superseded`; :mod:`.repeats` finds them where the
transaction is too large for memory.
"""
