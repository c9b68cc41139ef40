"""From a statement to what will run: one plan that EXPLAIN shows, VALIDATE checks, RUN stores.

* :mod:`.names` finds the source and resolves the sink a statement speaks of.
* :mod:`.targets` turns targets into tables.
* :mod:`.build` makes the :class:`~changefeed.plan.stages.FeedPlan`; it finds every problem,
  not the first, and changes nothing.
* :mod:`.alter` plans ALTER CHANGEFEED; :mod:`.cdc` translates YugabyteDB's CREATE CDC.
* :mod:`.message` says how one table's changes become messages.
* :mod:`.explain` and :mod:`.check` are the tables that EXPLAIN and VALIDATE answer.
"""
