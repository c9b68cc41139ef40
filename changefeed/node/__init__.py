"""The node: takes feeds by lease and reconciles what runs with the state.

::

    node.py     the loop: what should run (the job table) against what runs
      |-- running_feeds.py   one runner a feed (feeds/); leases
      |-- sources.py         one runtime and one thread a source (capture/)
      |-- lost_sources.py    sources that another node captures and cannot reach
      |-- datasets.py        one thread a dataset that is compared
      |-- proofs.py          one thread for option verify
      |-- questions.py       answers to processes without Spark
      '-- sinkless.py        feeds without INTO, for a client in this process

Import the module you need; this package imports none, so that reading the job table costs
neither Spark nor a source's driver.
"""
