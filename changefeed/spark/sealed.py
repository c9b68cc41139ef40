"""What the tasks of a job carry, sealed: each worker asks this process for the key.

Tasks name sources and sinks by addresses with passwords. Spark keeps what tasks carry in blocks and
files of every machine and sends it in the clear, unless the site has set otherwise. So a task
carries ciphertext, and its key goes from this process to the worker alone, encrypted for a key pair
that the worker makes for that (HPKE, RFC 9180). This process answers while the job runs; a key is
never written to a disk (``docs/decisions/task-secrets.md``).
"""

from __future__ import annotations

import functools
import hmac
import os
import pickle
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import lacking
from changefeed.spark.executors import errors_packed
from changefeed.spark.listening import WorkerPort, receive

if TYPE_CHECKING:
    import pyarrow as pa
    from cryptography.hazmat.primitives.hpke import Suite

    BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

#: Sizes of a nonce of AES-GCM, of a public key of X25519, and of a SHA-256.
_NONCE, _PUBLIC, _PROOF = 12, 32, 32
_HPKE = "cryptography.hazmat.primitives.hpke"
#: For one message of the other side.
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SealedFunction:
    """A function of batches that workers can open while its job runs; pickles.

    Attributes:
        secret: proves that who asks for the key has the task; never sent.
        content: the pickled function, encrypted.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    content: bytes = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Call the function.

        Raises:
            RuntimeError: as of :func:`.errors_packed`: CF4002, the node does not answer.
        """
        with errors_packed():
            function = self.opened()
        return function(batches)

    def opened(self) -> BatchFunction:
        """The function, a new object each time.

        Raises:
            ChangefeedError: CF4002, the node does not give the key: it cannot be reached, or the
                job has ended.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = _key(self.host, self.port, self.secret)
        opened = AESGCM(key).decrypt(self.content[:_NONCE], self.content[_NONCE:], None)
        function: BatchFunction = pickle.loads(opened)
        return function


@contextmanager
def sealed(function: BatchFunction, host: str) -> Iterator[SealedFunction]:
    """The function as ciphertext, which workers can open in this block.

    Args:
        host: the address at which workers reach this process.

    Raises:
        ChangefeedError: CF4003, the package for it is missing, or too old.
    """
    if missing := lacking("a Spark job", (_HPKE,), "spark", code=Code.SPARK_NOT_AVAILABLE):
        raise missing
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from pyspark import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    key, nonce = AESGCM.generate_key(256), os.urandom(_NONCE)
    secret = secrets.token_bytes(32)
    content = nonce + AESGCM(key).encrypt(nonce, dumps(function), None)

    def answer(worker: socket.socket) -> None:
        worker.settimeout(_SECONDS)
        asked = receive(worker, _PUBLIC + _PROOF)
        public, proof = asked[:_PUBLIC], asked[_PUBLIC:]
        if hmac.compare_digest(proof, _proof(secret, public)):
            worker.sendall(_suite().encrypt(key, X25519PublicKey.from_public_bytes(public), secret))

    with WorkerPort(host, answer, "task-keys") as port:
        yield SealedFunction(host, port.number, secret, content)


def _proof(secret: bytes, public: bytes) -> bytes:
    return hmac.digest(secret, public, "sha256")


def _suite() -> Suite:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@functools.lru_cache(maxsize=4)
def _key(host: str, port: int, secret: bytes) -> bytes:
    """The key of a job; a worker asks once for all of its tasks."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    pair = X25519PrivateKey.generate()
    public = pair.public_key().public_bytes_raw()
    try:
        with socket.create_connection((host, port), _SECONDS) as connection:
            connection.sendall(public + _proof(secret, public))
            with connection.makefile("rb") as answer:
                return _suite().decrypt(answer.read(), pair, secret)
    except (OSError, InvalidTag) as cause:
        raise ChangefeedError(
            Code.SPARK_FAILED,
            f"a Spark worker gets no key for its task from the node at {host}:{port}: "
            f"{getattr(cause, 'strerror', None) or 'no answer'}",
            hint="executors connect to the node: set spark.driver.host to an address that they "
            "reach. After the end of a job this is expected.",
        ) from cause
