"""Everything about one source: its capture process, its change log, and what is held there.

::

    node                                           child process
    reconciler.py: what the feeds of a source need
      |  expand.py: new tables of a SCHEMA or DATABASE
      v
    source_runtime.py ---> supervisor.py =========> process.py: source's log -> change log
      |        |             standby.py: started     feed_budgets.py: limits of disk space
      |        |             before its source is        |
      |        |             known                       | files
      |        +---> growing_log.py <--------------------+
      |                ^ read by feeds, which wait here until the log has grown
      +---> captured_tables.py: what the source sends, and gaps in it
              table_identity.py: a name that belongs to another table now
              lost_tables.py: what became of the first one

There is one of each for a source. A child sends its notices as lines of JSON on standard output.
"""
