"""librdkafka's C functions, in the library that confluent-kafka brings with it."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p

import numpy as np

from changefeed.core.errors import ChangefeedError, Code

#: ``rd_kafka_message_t``; the layout is part of librdkafka's stable ABI (64-bit).
MESSAGE = np.dtype(
    [
        ("err", "i4"),
        ("pad0", "i4"),
        ("topic", "u8"),
        ("partition", "i4"),
        ("pad1", "i4"),
        ("payload", "u8"),
        ("size", "u8"),
        ("key", "u8"),
        ("key_size", "u8"),
        ("offset", "i8"),
        ("private", "u8"),
    ]
)


class _Message(Structure):
    _fields_ = [
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("size", c_size_t),
        ("key", c_void_p),
        ("key_size", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    ]


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_conf_destroy": (None, [c_void_p]),
    "rd_kafka_conf_set_events": (None, [c_void_p, c_int]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "rd_kafka_topic_destroy": (None, [c_void_p]),
    "rd_kafka_topic_name": (c_char_p, [c_void_p]),
    "rd_kafka_produce_batch": (c_int, [c_void_p, c_int32, c_int, c_void_p, c_int]),
    "rd_kafka_producev": (c_int, [c_void_p]),
    "rd_kafka_metadata": (c_int, [c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int]),
    "rd_kafka_metadata_destroy": (None, [c_void_p]),
    "rd_kafka_flush": (c_int, [c_void_p, c_int]),
    "rd_kafka_purge": (c_int, [c_void_p, c_int]),
    "rd_kafka_outq_len": (c_int, [c_void_p]),
    "rd_kafka_event_error_is_fatal": (c_int, [c_void_p]),
    "rd_kafka_err2name": (c_char_p, [c_int]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_queue_get_main": (c_void_p, [c_void_p]),
    "rd_kafka_queue_poll": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_set_log_queue": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_event_type": (c_int, [c_void_p]),
    "rd_kafka_event_destroy": (None, [c_void_p]),
    "rd_kafka_event_message_next": (POINTER(_Message), [c_void_p]),
    "rd_kafka_event_error": (c_int, [c_void_p]),
    "rd_kafka_event_error_string": (c_char_p, [c_void_p]),
    "rd_kafka_event_log": (
        c_int,
        [c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int)],
    ),
    "rd_kafka_init_transactions": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_begin_transaction": (c_void_p, [c_void_p]),
    "rd_kafka_commit_transaction": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_abort_transaction": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_error_code": (c_int, [c_void_p]),
    "rd_kafka_error_string": (c_char_p, [c_void_p]),
    "rd_kafka_error_is_retriable": (c_int, [c_void_p]),
    "rd_kafka_error_destroy": (None, [c_void_p]),
    "rd_kafka_msg_partitioner_murmur2": (
        c_int32,
        [c_void_p, c_char_p, c_size_t, c_int32, c_void_p, c_void_p],
    ),
    "rd_kafka_headers_new": (c_void_p, [c_size_t]),
    "rd_kafka_header_add": (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t]),
    "rd_kafka_headers_destroy": (None, [c_void_p]),
}


def property_refusal(name: str, value: str) -> str:
    """What librdkafka has against a property and its value; empty if it takes them.

    Raises:
        ChangefeedError: as :func:`library`.
    """
    client = library()
    config, said = client.rd_kafka_conf_new(), ctypes.create_string_buffer(512)
    try:
        refused = client.rd_kafka_conf_set(config, name.encode(), value.encode(), said, len(said))
        return said.value.decode(errors="replace") if refused else ""
    finally:
        client.rd_kafka_conf_destroy(config)


@functools.cache
def library() -> ctypes.CDLL:
    """librdkafka as confluent-kafka loaded it.

    Looking a name up in the client's extension module searches the libraries it was linked
    with, so this finds the very library the client uses, wherever the package put it. That holds
    for Confluent's wheels and for a build against a shared librdkafka, on 64-bit machines.

    Raises:
        ChangefeedError: CF4003, the client has its own copy inside, or the machine has 32 bits.
    """
    import confluent_kafka.cimpl

    try:
        if ctypes.sizeof(c_void_p) != 8 or MESSAGE.itemsize != ctypes.sizeof(_Message):
            raise OSError("its messages have another layout on this machine")
        found = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ChangefeedError(
            Code.SINK_NEEDS_EXTRA,
            "librdkafka cannot be reached from here",
            detail=str(error),
            hint="install the wheel of confluent-kafka for a 64-bit Linux or macOS; a build of "
            "it with a static librdkafka does not do.",
        ) from error
    # Variadic: the fixed part is the handle; the rest is converted where it is called.
    return found
