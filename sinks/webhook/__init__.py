"""Webhooks: batches of messages by HTTP POST, in CockroachDB's shape."""
