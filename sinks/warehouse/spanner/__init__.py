"""Google Spanner as a target: mutations and its own SQL."""
