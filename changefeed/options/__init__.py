"""The options of a changefeed.

* :mod:`.table` has one row for each option, :mod:`.types` the types of their values,
  :mod:`.relations` the rules between options, :mod:`.sink_config` the JSON of
  ``kafka_sink_config`` and ``webhook_sink_config``.
* :mod:`.options` checks, types, stores and shows the options of one feed.
* :mod:`.docs` writes the page of the documentation from the table.

This module is the public face: sinks and the shell import from here.
"""

# ruff: noqa: F403

from changefeed.core.quantities import parse_duration as parse_duration
from changefeed.core.quantities import parse_size as parse_size
from changefeed.options.masking import hide_masked as hide_masked
from changefeed.options.masking import mask_statement as mask_statement
from changefeed.options.options import *
from changefeed.options.relations import RELATIONS as RELATIONS
from changefeed.options.row import OPTIONS as OPTIONS
from changefeed.options.row import OptionRow as OptionRow
from changefeed.options.row import own_option as own_option
from changefeed.options.sink_config import KafkaSinkConfig as KafkaSinkConfig
from changefeed.options.table import *
from changefeed.options.types import DebeziumOffset as DebeziumOffset
from changefeed.options.types import one_of as one_of
from changefeed.options.values import *
