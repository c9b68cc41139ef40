"""For authors of sinks and for our own tests: what a sink must do, as code.

* :mod:`sinks.testing.conformance` is the list every sink passes; implement a ``Harness``.
* :mod:`sinks.testing.validators` watch a stream of messages for broken guarantees.
* :mod:`sinks.testing.faulty` wraps a sink and fails it on purpose.
* :mod:`sinks.testing.feed` makes batches, and delivers epochs as a feed does.
"""
