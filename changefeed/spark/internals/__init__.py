"""Everything that changefeed uses although it is no part of a public API: private attributes of
PySpark, classes behind py4j, classes of Delta.

    abilities    each gain, the classes it needs, what is done without it; ``survey`` looks for them
    projection   a CDC query as a function in the driver's JVM
    plans        Spark's analysis of a query, node by node
    delta        a round as one transaction of Delta; what a Delta table has recorded
    files        Hadoop's clients of a staging place
    sessions     the session of a thread, extensions of a planner, jobs of a group, counts
    arrow_types  types of Arrow as Spark's, and functions over Arrow arrays
    starting     one JVM and its client; PySpark's module-wide state
    daemon       the parent of Spark's Python workers

No other module names such a part (tests/hygiene/test_private_spark.py). A caller of one of the
first five asks :func:`~.abilities.allows` first, and has a public way to fall back on. The others
are for a session that this process has started, or do nothing where the part is missing.
"""
