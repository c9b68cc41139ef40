"""Messages of every format, made of log rows by Arrow's kernels: a column at a time.

    log rows -> which are messages (select) -> JSON tokens of the values (json_tokens)
             -> key, value, headers (formats) -> rows of MESSAGE_SCHEMA (encode)

The form of messages is one frozen value (plan), made from a feed's options (compile). A value of
the log is a finished token or becomes one by a cast or by quotes. So a message is a concatenation
of tokens and constant text, and Arrow makes those of a whole column in one call
(``benchmarks/encode.py``).

A format is a row of :mod:`.formats`: a :class:`~.message_format.MessageFormat` in a module of its
own. Typed formats first read the log's text into columns of their types (typed_values).
:mod:`.types` says which type a column has in a typed format, :mod:`.record_shape` which members
a typed message has. Avro and protobuf (packages of their own: ``schema`` writes the schema,
``values`` and ``format`` the bytes) join bytes (byte_columns, binary_record); Parquet takes the
columns themselves (parquet). :mod:`.registry` stores schemas in a schema registry, and
:mod:`.registered` keeps the ids of those of a feed. This takes a twentieth of the CPU of fastavro,
which works row by row (``benchmarks/encode_avro.py``).
"""
