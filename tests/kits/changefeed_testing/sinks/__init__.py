"""The requirements on sinks as code, for authors of sinks and for the tests of this repository.

* :mod:`changefeed_testing.sinks.conformance` is the list that every sink passes; implement a
  ``Harness``.
* :mod:`changefeed_testing.sinks.validators` watch a stream of messages for broken guarantees.
* :mod:`changefeed_testing.sinks.faulty` wraps a sink and makes its calls fail.
* :mod:`changefeed_testing.sinks.feed` makes batches, and delivers epochs as a feed does.
"""
