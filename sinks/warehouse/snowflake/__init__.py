"""Snowflake as a target: its client and SQL."""
