"""Kafka: topics, partitions, an idempotent producer.

::

    rows ---> sink.py ---> channel.py ---> librdkafka.py        a batch is one C call
                |  |
                |  +--> transactions.py    delivery = 'exactly_once'
                +-----> schemas.py         schema_topic
    options.py  URI and options -> the client's configuration
    topics.py   what the brokers know of topics; makes those that are missing
    errors.py   librdkafka's error names -> our codes

Only ``channel.py`` produces. Nothing here runs Python for a row that arrives.
"""
