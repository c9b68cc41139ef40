"""Iceberg's own server of a REST catalog, over a JDBC catalog, and a door that asks for a login.

The server is the implementation that Iceberg tests its client with (``RESTCatalogServlet`` of
iceberg-core's tests) in a Jetty. It keeps its tables in PostgreSQL and writes their metadata
through Hadoop. It hands out OAuth tokens and asks for none; :class:`Door` stands before it, checks
them, and passes on what is allowed in.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port
from changefeed.spark.java import find_java
from changefeed.spark.jvm import spark_jars
from changefeed.spark.packs import paths
from tests.services.ivy import pinned

#: A token that the door takes, and the client that may ask for others.
TOKEN = "t0ken-of-the-catalog"
CLIENT, SECRET = "changefeed", "s3cret-of-the-client"

_LOCK = Path(__file__).with_name("iceberg-rest.lock")

#: Jars of PySpark's: Hadoop, and what its filesystem of S3 calls.
_OF_SPARK = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "jcl-over-slf4j",
    "httpclient",
    "httpcore",
)

#: What a Jetty is to run, in its own language.
_SERVER = """<?xml version="1.0"?>
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN" "configure.dtd">
<Configure id="server" class="org.eclipse.jetty.server.Server">
  <New id="hadoop" class="org.apache.hadoop.conf.Configuration">{hadoop}</New>
  <New id="properties" class="java.util.HashMap">{properties}</New>
  <Call id="catalog" class="org.apache.iceberg.CatalogUtil" name="loadCatalog">
    <Arg>org.apache.iceberg.jdbc.JdbcCatalog</Arg>
    <Arg>rest</Arg>
    <Arg><Ref refid="properties"/></Arg>
    <Arg><Ref refid="hadoop"/></Arg>
  </Call>
  <Call name="addConnector">
    <Arg>
      <New class="org.eclipse.jetty.server.ServerConnector">
        <Arg><Ref refid="server"/></Arg>
        <Set name="host">127.0.0.1</Set>
        <Set name="port">{port}</Set>
      </New>
    </Arg>
  </Call>
  <New id="context" class="org.eclipse.jetty.ee10.servlet.ServletContextHandler">
    <Call name="addServlet">
      <Arg>
        <New class="org.eclipse.jetty.ee10.servlet.ServletHolder">
          <Arg>
            <New class="org.apache.iceberg.rest.RESTCatalogServlet">
              <Arg>
                <New class="org.apache.iceberg.rest.RESTCatalogAdapter">
                  <Arg><Ref refid="catalog"/></Arg>
                </New>
              </Arg>
            </New>
          </Arg>
        </New>
      </Arg>
      <Arg>/*</Arg>
    </Call>
  </New>
  <Set name="handler"><Ref refid="context"/></Set>
</Configure>
"""


class IcebergRest:
    """A catalog.

    Args:
        folder: for the server's own files.
        database: ``postgresql://`` URI of the database that its tables are kept in.
        warehouse: directory under which they are, on a local disk or ``s3a://bucket/directory``.
        hadoop: settings of the warehouse's filesystem (``fs.s3a.endpoint``, ..).
    """

    def __init__(
        self, folder: Path, database: str, warehouse: str, hadoop: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_file = folder / "iceberg-rest.log"
        address = urlsplit(database)
        self._hadoop = dict(hadoop or {})
        self._properties = {
            "uri": f"jdbc:postgresql://{address.hostname}:{address.port}{address.path}",
            "jdbc.user": address.username or "",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60.0) -> IcebergRest:
        """Start and wait until it answers."""
        program = self.folder / "iceberg-rest.xml"
        program.write_text(
            _SERVER.format(
                port=self.port,
                hadoop=_calls("set", self._hadoop),
                properties=_calls("put", self._properties),
            )
        )
        program.chmod(0o600)
        command: list[str | Path] = [find_java().executable, "-Xmx256m", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", "-cp", self._class_path()]
        command += ["org.eclipse.jetty.xml.XmlConfiguration", program]
        self._process = spawn(command, log_file=self.log_file)
        atexit.register(self.stop)
        deadline = time.monotonic() + timeout
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                log = self.log_file.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the catalog did not start\n{log}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """End the server: what it keeps is in its database."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        atexit.unregister(self.stop)
        self._process = None

    def __enter__(self) -> IcebergRest:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get(self, path: str) -> Any:
        """The answer to a request for ``/v1/path``; None where there is no such thing."""
        try:
            with urllib.request.urlopen(f"{self.url}/v1/{path}", timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            raise

    def _answers(self) -> bool:
        try:
            return self.get("config") is not None
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _class_path(self) -> str:
        own, jars = pinned(_LOCK), paths(["postgresql-jdbc"])
        if self._hadoop:
            jars += paths(["hadoop-aws"])
        for name in _OF_SPARK:
            jars += spark_jars().glob(f"{name}-*.jar")
        # Iceberg's tests come last: they have classes of Hadoop's names.
        jars += sorted(own.glob("*.jar"), key=lambda jar: (jar.stem.endswith("-tests"), jar.name))
        return ":".join(map(str, jars))


def _calls(method: str, values: Mapping[str, str]) -> str:
    return "".join(
        f'<Call name="{method}"><Arg>{escape(name)}</Arg><Arg>{escape(value)}</Arg></Call>'
        for name, value in values.items()
    )


class Door:
    """Stands before a catalog on a port of its own and lets in who has a token.

    Attributes:
        url: the catalog's address for clients.
        refused: requests that were answered with 401.
        admitted: the tokens of those that were not, each once.
    """

    def __init__(self, catalog: IcebergRest) -> None:
        self.refused = 0
        self.admitted: set[str] = set()
        self._issued = {TOKEN}
        self._target = catalog.port
        door = self

        class Handler(_Handler):
            owner = door

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Door:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def pass_on(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """The answer to a request: status, headers, body."""
        tokens = path.endswith("/v1/oauth/tokens")
        if tokens:
            form = parse_qs(body.decode())
            if (form.get("client_id"), form.get("client_secret")) != ([CLIENT], [SECRET]):
                return self._refuse({"error": "invalid_client", "error_description": "no"})
        else:
            token = headers.get("authorization", "").removeprefix("Bearer ")
            if token not in self._issued:
                error = {"message": f"no: {token}", "type": "NotAuthorizedException", "code": 401}
                return self._refuse({"error": error})
            self.admitted.add(token)
        connection = HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            kept = {name: value for name, value in headers.items() if name not in _OWN}
            connection.request(method, path, body, kept)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if tokens:
            self._issued.add(json.loads(content)["access_token"])
        found = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN}
        return answer.status, found, content

    def _refuse(self, problem: object) -> tuple[int, dict[str, str], bytes]:
        self.refused += 1
        return 401, {"Content-Type": "application/json"}, json.dumps(problem).encode()


#: Headers of one connection, which are not passed on.
_OWN = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "date"}


class _Handler(BaseHTTPRequestHandler):
    owner: Door
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, more, content = self.owner.pass_on(self.command, self.path, headers, body)
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass
