"""Webhooks: batches of messages by HTTP POST, in CockroachDB's shape.

::

    rows --> sink.py --> body.py: one queue a key --> ordered_queues.py: one request each -->
    client.py options.py   URI and options

A queue has one request in flight, so the messages of a key arrive in order.
"""
