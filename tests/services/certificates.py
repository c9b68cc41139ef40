"""A certificate authority for one test run, and what it signed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


def write_certificates(folder: Path) -> Path:
    """Write ``ca``, ``server`` (127.0.0.1, localhost) and ``client``, each ``.pem`` and ``.key``.

    ``server-keystore.pem`` is key and chain in one file, as Kafka wants it; keys are PKCS #8.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.private_key_pem.write_to_path(str(folder / "ca.key"))
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


def write_revocations(folder: Path, file: Path, *, revoked: bool) -> Path:
    """The authority's list of revoked certificates, with the server's or empty."""
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    assert isinstance(key, EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    made = x509.CertificateRevocationListBuilder(
        issuer_name=authority.subject, last_update=now - timedelta(days=1),
        next_update=now + timedelta(days=1),
    )  # fmt: skip
    if revoked:
        entry = x509.RevokedCertificateBuilder(server.serial_number, now - timedelta(hours=1))
        made = made.add_revoked_certificate(entry.build())
    file.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return file
