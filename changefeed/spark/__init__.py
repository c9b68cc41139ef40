"""Spark: many processes for work that one cannot do fast enough.

    settings (the command line) -> session.NodeSpark: the one session of this process
                                     node_session: what it does with a session
                                     attached: a session that exists, or of Spark Connect
                                     jvm_session: one JVM and its session, from start to end
                                       java, jvm: finding a Java, starting the JVM
                                       packs, ivy: jars; properties: settings of the session
                                       shipping: Python for the executors
    node -> tasks.run_tasks -> executors, in Spark's Python workers -> results
              progress <- datagrams of the workers
              staging: rows for executors that do not see the node's files
    failure: what Spark raised -> a ChangefeedError
    internals: what is used of Spark without being part of its public API

Lake tables are merged in this session, CDC queries and datasets evaluated, and large tables scanned
(:mod:`changefeed.scan.spark`). No Python code runs per row. Importing this package starts nothing,
and the command line imports of it the settings alone.
"""
