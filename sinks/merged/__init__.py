"""Tables that are kept equal to those of the source: what is the same for every such target.

Lakes (:mod:`sinks.lake`) and SQL warehouses (:mod:`sinks.warehouse`) write tables in different
ways, but the contents are the same. This package decides what the options mean, which rows are
removed, and which changes need not be applied again.
"""
