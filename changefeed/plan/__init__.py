"""From a statement to what will run: one plan that EXPLAIN shows, VALIDATE checks, RUN stores.

* :mod:`.names` finds the source of a statement, :mod:`.sink_resolution` its sink.
* :mod:`.targets` turns targets into tables.
* :mod:`.build` makes the :class:`~changefeed.plan.stages.FeedPlan`; it finds every problem,
  not the first, and changes nothing.
* :mod:`.bulk_work` knows which work of a feed cannot be a Spark job.
* :mod:`.alter` plans ALTER CHANGEFEED; :mod:`.cdc` translates YugabyteDB's CREATE CDC.
* :mod:`.stages` and :mod:`.check` make the tables that EXPLAIN and VALIDATE return.

::

    statement -> names (source), sink_resolution (sink), options
              -> targets -> tables -> stages.FeedPlan -> EXPLAIN | VALIDATE | the job table
"""
