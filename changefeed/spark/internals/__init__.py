"""Everything that changefeed uses of Spark and Spark promises to nobody: PySpark's private
attributes, classes behind py4j, classes of Delta.

    abilities    each gain, the classes it needs, what is done without it; ``survey`` looks for them
    projection   a CDC query as a function in the driver's JVM
    plans        Spark's analysis of a query, node by node
    delta        a round as one transaction of Delta; what a Delta table has recorded
    files        Hadoop's clients of a staging place
    sessions     the session of a thread, extensions of a planner, jobs of a group, counts
    arrow_types  types of Arrow as Spark's, and functions over Arrow arrays
    starting     one JVM and its client; PySpark's module-wide state
    daemon       the parent of Spark's Python workers

No other module names such a part (tests/hygiene). Whoever uses one of the first five asks
:func:`~.abilities.allows` first and has a public way beside it. The others are of a session that
this process started itself, or do nothing where the part is missing.
"""
