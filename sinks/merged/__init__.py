"""Tables that are kept equal to those of the source: what every such target decides alike.

Lakes (:mod:`sinks.lake`) and SQL warehouses (:mod:`sinks.warehouse`) differ in how a table is
written, not in what it is to hold. What the options mean, which rows go, and what need not be
applied again is said here once.
"""
