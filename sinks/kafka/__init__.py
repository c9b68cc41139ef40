"""Kafka: topics, partitions, an idempotent producer."""
