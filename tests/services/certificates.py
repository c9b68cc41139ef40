"""A certificate authority for one test run, and what it signed."""

from __future__ import annotations

from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


def write_certificates(folder: Path) -> Path:
    """Write ``ca.pem``, ``server.pem``/``.key`` (127.0.0.1, localhost), ``client.pem``/``.key``.

    ``server-keystore.pem`` is key and chain in one file, as Kafka wants it; keys are PKCS #8.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = {
        "server": authority.issue_cert("127.0.0.1", "localhost"),
        "client": authority.issue_cert("alice@example.test", common_name="alice"),
    }
    for name, certificate in issued.items():
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        key = load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{name}.pem").write_bytes(chain)
        (folder / f"{name}.key").write_bytes(pem)
        (folder / f"{name}.key").chmod(0o600)
        (folder / f"{name}-keystore.pem").write_bytes(pem + chain)
    return folder
