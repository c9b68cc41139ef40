"""Messages of every format, made of log rows by Arrow's kernels: a column at a time.

    log rows -> which are messages (select) -> JSON tokens of the values (json_tokens)
             -> key, value, headers (formats) -> rows of MESSAGE_SCHEMA (encode)

What messages look like is one frozen value (plan), made from a feed's options (compile). A value
of the log is a finished token or becomes one by a cast or a quote, so a message is its tokens and
constant text beside each other, which is one call of Arrow's for a whole column
(``benchmarks/encode.py``).

A format is a row of :mod:`.formats`: a :class:`~.message_format.MessageFormat` in a module of its
own. Those that need types read the log's text into columns of those types first (typed_values).
:mod:`.types` says which type a column has in a typed format, :mod:`.record_shape` which members
a typed message has. Avro and protobuf (packages of their own: ``schema`` writes the schema,
``values`` and ``messages`` the bytes) join bytes (byte_columns, binary_record); Parquet takes the
columns themselves (parquet). :mod:`.registry` makes schemas known to a schema registry, and
:mod:`.registered` keeps those of a feed. Against fastavro row by row this takes a twentieth of the
CPU (``benchmarks/encode_avro.py``).
"""
