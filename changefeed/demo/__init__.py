"""``changefeed demo``: feeds at work on a real PostgreSQL, with nothing else installed."""
