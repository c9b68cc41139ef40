"""Comparison of datasets: today's extract of an object against what is known of it.

config.yaml -> model (columns, keys, folders)        config
extract -> typed, hashed rows                         incoming
rows against the current dataset -> I, U, D, X, N     compare  (one Spark job)
the result -> current dataset and history             store    (files, one atomic switch)
all of it, once                                       run
"""

from changefeed.dataset.config import read_config
from changefeed.dataset.model import Dataset, DatasetColumn, Extract, Hash, Operation
from changefeed.dataset.run import Outcome, effective_date, run_config, run_dataset

__all__ = [
    "Dataset",
    "DatasetColumn",
    "Extract",
    "Hash",
    "Operation",
    "Outcome",
    "effective_date",
    "read_config",
    "run_config",
    "run_dataset",
]
