"""What every other package may use; nothing here imports another package of changefeed.

rows        schema (a table's shape, how values are stored), log_form (the text of values),
            arrow (Arrow's types of both), events (what moves), log_rows, row_parts
messages    formats, shapes (envelopes), partition, logical_messages
errors      errors (the table of codes), error_docs, table_errors, internal_errors, faults
time        clock (hybrid timestamps), elapsed, timings, sizes, time_limits
addresses   uri, parameters, secret_names, login_states
machine     state (the state directory), durable, proofs, node_lock, processes, child_path,
            loading, telemetry, printable, version
Spark       engines (node or job), spark_sql
"""
