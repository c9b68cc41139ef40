"""The requirements on sinks as code, for authors of sinks and for the tests of this repository.

* :mod:`sinks.testing.conformance` is the list that every sink passes; implement a ``Harness``.
* :mod:`sinks.testing.validators` watch a stream of messages for broken guarantees.
* :mod:`sinks.testing.faulty` wraps a sink and makes its calls fail.
* :mod:`sinks.testing.feed` makes batches, and delivers epochs as a feed does.
"""
