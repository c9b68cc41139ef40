"""Discards everything."""
