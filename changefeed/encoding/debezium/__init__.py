"""Debezium's messages: its names of types, its schemas, keys and values as its JSON."""
