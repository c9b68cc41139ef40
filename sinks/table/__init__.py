"""The SQL table sink: messages as rows of one table."""
