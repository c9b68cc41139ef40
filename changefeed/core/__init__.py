"""What every other package may use: time, errors, schemas, URIs, rows of the log.

Nothing here imports another package of changefeed.
"""
