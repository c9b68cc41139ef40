"""Protobuf: the type of a message, and keys and values as protobuf's bytes."""
