"""Comparison of datasets: today's extract of an object against what is known of it.

config.yaml -> model (columns, keys, folders)        config
URI of FOR DATASET -> model and schedule             definition
what has arrived -> the extract to compare           extracts
extract -> typed, hashed rows                         incoming
rows against the current dataset -> I, U, D, X, N     compare  (one Spark job)
how many parts that job shuffles rows into            shuffle
keys that an extract has twice                        duplicates
the result -> current dataset and history             store    (files, one atomic switch)
the folders as tables of Spark's catalog              tables
all of it, once                                       run
"""

from changefeed.dataset.config import read_config
from changefeed.dataset.extracts import effective_date
from changefeed.dataset.model import Dataset, DatasetColumn, Extract, Hash, Operation

__all__ = [
    "Dataset",
    "DatasetColumn",
    "Extract",
    "Hash",
    "Operation",
    "effective_date",
    "read_config",
]
