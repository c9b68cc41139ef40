"""Elastic's client, as it carries our requests: bytes in, bytes out, any status an answer.

The client has the nodes, pools, TLS, retries on another node, and the headers of its major version.
It is asked for whole requests (``perform_request``), bulk bodies included; its helpers would make
an object of every line of a body and of every item of an answer.

The client takes about a second to import: only an opened connection imports this module.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from elastic_transport import (
    ApiResponseMeta,
    HttpHeaders,
    NodeConfig,
    Serializer,
    Transport,
    TransportApiResponse,
    Urllib3HttpNode,
)
from elasticsearch import (
    ConnectionTimeout,
    Elasticsearch,
    SSLError,
    TransportError,
    UnsupportedProductError,
)

from changefeed.core.time_limits import limit_connections

__all__ = ["ClusterConnection", "ConnectionTimeout", "Response", "SSLError", "TransportError"]

_log = logging.getLogger("changefeed.sinks.elasticsearch")

#: All statuses: the client raises none of them as an error.
_ANY = frozenset(range(100, 600))


class _BytesSerializer(Serializer):
    mimetype = "application/json"

    def dumps(self, data: Any) -> bytes:
        return bytes(data)

    def loads(self, data: bytes) -> Any:
        return data


_KINDS = ("application/json", "application/x-ndjson", "application/*", "text/*")


class _LoggedTransport(Transport):
    """Logs remarks of the server, of which the client would make Python warnings."""

    def perform_request(self, *given: Any, **named: Any) -> TransportApiResponse:
        meta, body = super().perform_request(*given, **named)
        remark = meta.headers.get("warning")
        if remark is not None:
            _log.debug("Elasticsearch remarks: %s", remark)
            kept = {name: text for name, text in meta.headers.items() if name.lower() != "warning"}
            meta = replace(meta, headers=HttpHeaders(kept))
        return TransportApiResponse(meta, body)


class Response(NamedTuple):
    meta: ApiResponseMeta
    body: bytes


class ClusterConnection:
    """A client of one cluster. Safe to use from several threads."""

    def __init__(
        self,
        hosts: Sequence[tuple[str, int]],
        *,
        secure: bool,
        path_prefix: str,
        connections: int,
        timeout: float,
        patience: float,
        tls: Mapping[str, Any],
    ) -> None:
        """Connects to nothing yet.

        Args:
            hosts: host and port of the nodes.
            connections: the most to one node.
            timeout: seconds a server may be silent.
            patience: so many times as long a request may take.
            tls: fields of the client's ``NodeConfig``.
        """
        nodes = [
            NodeConfig(
                scheme="https" if secure else "http",
                host=host,
                port=port,
                path_prefix=path_prefix,
                connections_per_node=connections,
                request_timeout=timeout,
                **tls,
            )
            for host, port in hosts
        ]
        self._client = Elasticsearch(
            nodes,
            transport_class=_LoggedTransport,
            node_class=Urllib3HttpNode,
            serializers={kind: _BytesSerializer() for kind in _KINDS},
            max_retries=len(nodes) - 1,  # another node where one cannot be reached
            retry_on_status=(),
        ).options(ignore_status=_ANY)
        for node in self._client.transport.node_pool.all():
            assert isinstance(node, Urllib3HttpNode)
            pool = node.pool
            pool.ConnectionCls = limit_connections(pool.ConnectionCls, timeout, patience)

    def perform(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | memoryview | None,
    ) -> Response:
        """One request.

        Raises:
            TransportError: no answer came; :class:`ConnectionTimeout`, :class:`SSLError`.
        """
        try:
            answer = self._client.perform_request(
                method, path, params=parameters, headers=headers, body=body
            )
        except UnsupportedProductError as error:
            # The caller finds out from the answer which server this is, and says what to do.
            return Response(error.meta, error.body or b"")
        return Response(answer.meta, answer.body or b"")

    def close(self) -> None:
        self._client.close()
