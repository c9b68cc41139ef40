"""Messages of every format, made of log rows by Arrow's kernels: a column at a time.

    log rows -> which are messages (select) -> tokens of the values (tokens)
             -> key, value, headers (envelope) -> rows of MESSAGE_SCHEMA (encode)

What messages look like is one frozen value (plan). A value of the log is a finished token or
becomes one by a cast or a quote, so a message is its tokens and constant text beside each other,
which is one call of Arrow's for a whole column (``benchmarks/encode.py``). Formats that need
types read the log's text into columns of those types first (typed); Avro and protobuf are then
bytes beside each other (pieces, tree, avro, protobuf), Parquet the columns themselves (parquet).
Against fastavro row by row a twentieth of the CPU (``benchmarks/encode_avro.py``).
"""
