"""What the broker knows about topics: partitions, size limits, making them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from sinks.kafka.errors import Reasons, explain, explain_name

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

#: Errors of a broker that has something against how a topic is to be made.
_FORM_REFUSED = ("INVALID_CONFIG", "INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR")

REQUEST_SECONDS = 10.0
"""How long one administrative request may take before the broker counts as unreachable."""


@dataclass(frozen=True, slots=True)
class TopicForm:
    """How topics of rows are made.

    Attributes:
        partitions: one, because a single order is what a reader expects of a table that nobody
            thought about.
        replication: -1 is the broker's default.
        settings: of the topic, by Kafka's names.
    """

    partitions: int = 1
    replication: int = -1
    settings: Mapping[str, str] = field(default_factory=dict)


class Topics:
    """The broker's view of a feed's topics. Safe to use from several threads."""

    def __init__(
        self,
        config: Mapping[str, Any],
        reasons: Reasons,
        request_seconds: float = REQUEST_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
        form: TopicForm | None = None,
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self._form = form or TopicForm()
        self._reasons = reasons
        self._clock = clock
        self._request_seconds = request_seconds
        settings = {**config, "error_cb": reasons.note}
        self._admin: AdminClient = AdminClient(settings, logger=reasons.logger)
        self._limits: dict[str, int] = {}
        self._lock = threading.Lock()

    def partitions(self, names: Sequence[str]) -> dict[str, int]:
        """Partition count by topic; 0 for a topic that does not exist.

        Raises:
            ChangefeedError: CF5001 when the broker does not answer, CF5002 when it refuses us.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        counts: dict[str, int] = {}
        if not names:
            return counts
        asked = self._admin.describe_topics(
            TopicCollection(list(names)), request_timeout=self._request_seconds
        )
        for name, answer in asked.items():
            try:
                counts[name] = len(self._result(answer).partitions)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise explain(error.args[0], self._reasons, topic=name) from error
                counts[name] = 0
        return counts

    def ensure(self, names: Sequence[str], settings: Mapping[str, str] | None = None) -> list[str]:
        """Make the topics that are missing; return the names made. With ``settings`` they are of
        the sink itself, not of rows: these settings and one partition.

        Raises:
            ChangefeedError: as :meth:`partitions`; CF5003 when a topic is missing and the
                broker does not let us make it.
        """
        from confluent_kafka import KafkaError, KafkaException

        missing = [name for name, count in self.partitions(names).items() if not count]
        if not missing:
            return []
        form = self._form
        if settings is not None:
            form = replace(form, partitions=1, settings=settings)
        wanted = [_new_topic(name, form) for name in missing]
        made = []
        for name, answer in self._admin.create_topics(
            wanted, request_timeout=self._request_seconds
        ).items():
            try:
                self._result(answer)
                made.append(name)
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if cause.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                if cause.retriable() or cause.code() < 0:
                    raise explain(cause, self._reasons, topic=name) from error
                raise _cannot_make(name, cause) from error
        return made

    def hindrances(self, names: Sequence[str]) -> list[ChangefeedError]:
        """What a feed of these topics would meet; asks only, makes nothing."""
        from confluent_kafka import KafkaException

        try:
            if not names:
                self._result(self._admin.describe_cluster(request_timeout=self._request_seconds))
            missing = [name for name, count in self.partitions(names).items() if not count]
        except KafkaException as error:
            return [explain(error.args[0], self._reasons)]
        except ChangefeedError as error:
            return [error]
        if not missing:
            return []
        wanted = [_new_topic(name, self._form) for name in missing]
        asked = self._admin.create_topics(
            wanted, request_timeout=self._request_seconds, validate_only=True
        )
        problems = []
        for name, answer in asked.items():
            try:
                self._result(answer)
            except KafkaException as error:
                problems.append(_cannot_make(name, error.args[0]))
            except ChangefeedError as error:
                problems.append(error)
        return problems

    def known(self, names: Sequence[str]) -> dict[str, int]:
        """As :meth:`partitions`, after the missing ones were made: none is 0.

        Raises:
            ChangefeedError: as :meth:`ensure`; CF5001 when a new topic does not appear.
        """
        counts = self.partitions(names)
        deadline = self._clock.monotonic() + self._request_seconds
        while gone := [name for name in names if not counts.get(name)]:
            if self._clock.monotonic() > deadline:
                raise ChangefeedError(
                    Code.SINK_UNREACHABLE, f"topic {gone[0]} was made but does not appear"
                )
            self.ensure(gone)
            counts |= self.partitions(gone)
        return counts

    def begin(self, name: str, partition: int) -> int:
        """The offset of the oldest message of a partition.

        Raises:
            ChangefeedError: as :meth:`partitions`.
        """
        return self._offset(name, partition, latest=False)

    def end(self, name: str, partition: int = 0) -> int:
        """The offset behind the last message of a partition, those of open transactions counted.

        Raises:
            ChangefeedError: as :meth:`partitions`.
        """
        return self._offset(name, partition, latest=True)

    def _offset(self, name: str, partition: int, *, latest: bool) -> int:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
            OffsetSpec,
        )

        spec = OffsetSpec.latest() if latest else OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets(
            {TopicPartition(name, partition): spec},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._request_seconds,
        )
        try:
            (answer,) = asked.values()
            return int(self._result(answer).offset)
        except KafkaException as error:
            raise explain(error.args[0], self._reasons, topic=name) from error

    def _result(self, answer: Future[Any]) -> Any:
        while wait([answer], 0.1).not_done:
            # Nobody else asks this client for the errors and log lines it has queued.
            self._admin.poll(0)
            if self._reasons.refused or self._reasons.interrupted.is_set():
                raise explain_name("_TIMED_OUT", "", self._reasons)
        self._admin.poll(0)
        return answer.result()

    def limit(self, name: str, *, asks: bool = False) -> int | None:
        """``max.message.bytes`` of the topic, None when the broker does not tell us. ``asks``: an
        answer of before is not enough."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
            ConfigResource,
            ResourceType,
        )

        with self._lock:
            if name in self._limits and not asks:
                return self._limits[name]
        resource = ConfigResource(ResourceType.TOPIC, name)
        found: int | None = None
        for answer in self._admin.describe_configs(
            [resource], request_timeout=self._request_seconds
        ).values():
            try:
                found = int(self._result(answer)["max.message.bytes"].value)
            except (KafkaException, KeyError):
                # Not everyone may read configurations: the broker then refuses by itself.
                found = None
        if found is not None:  # a topic made a moment ago may not be known everywhere
            with self._lock:
                self._limits[name] = found
        return found


def _new_topic(name: str, form: TopicForm) -> NewTopic:
    from confluent_kafka.cimpl import NewTopic

    return NewTopic(
        name,
        num_partitions=form.partitions,
        replication_factor=form.replication,
        config=dict(form.settings),
    )


def _cannot_make(name: str, cause: KafkaError) -> ChangefeedError:
    hint = "create the topic yourself, or grant CREATE on it to this user."
    if cause.name() in _FORM_REFUSED:
        hint = "change topic_partitions, replication_factor or the topic.* setting in the sink URI."
    return ChangefeedError(
        Code.SINK_REFUSED_DATA,
        f"topic {name} does not exist and the broker does not allow its creation",
        detail=str(cause.str()),
        hint=hint,
    )
