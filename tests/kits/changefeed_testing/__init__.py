"""The promises of sinks and sources as tests, for their authors and for this repository.

* :mod:`changefeed_testing.sinks`: see ``docs/sink-guide.md``.
* :mod:`changefeed_testing.sources`: see ``docs/source-guide.md``.
"""
