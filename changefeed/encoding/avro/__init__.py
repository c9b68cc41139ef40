"""Avro: the schema of a message, and keys and values as Avro's bytes."""
