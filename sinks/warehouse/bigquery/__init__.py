"""Google BigQuery as a target: its client, SQL and errors."""
