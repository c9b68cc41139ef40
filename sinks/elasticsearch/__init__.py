"""Elasticsearch: an index a table, documents by key, versions made of the commit timestamp."""
