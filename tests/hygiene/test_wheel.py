"""The wheel built from the repository: what is in it, and that it works in a clean environment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from changefeed.core.version import __version__
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

ROOT = Path(__file__).parents[2]

#: Files that are not Python and that the program reads when it runs.
CONSOLE = ROOT / "changefeed" / "http" / "console"
DATA = {
    "changefeed/demo/feeds.sql",
    "changefeed/demo/shop.sql",
    "changefeed/demo/shop_mysql.sql",
    "changefeed/py.typed",
    "changefeed/sources/debezium/java/Compile.java",
    "changefeed/sources/debezium/java/Door.java",
    "changefeed/sources/debezium/java/debezium-mongodb/Documents.java",
    "changefeed/spark/jars.lock",
    "grammar/py.typed",
    "shell/py.typed",
    "sinks/py.typed",
}


def run(*command: str | Path, cwd: Path = ROOT, seconds: float = 300) -> str:
    """Standard output of a program that ends well, without our sources on its path."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=seconds, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files alone: what lies about beside them must not get into a wheel."""
    source = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, timeout=30
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    return source


def built(source: Path, folder: Path) -> Path:
    """The wheel of a project, made in ``folder``."""
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    run(sys.executable, "-m", *build, str(source))
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def ending(contents: dict[str, bytes], end: str) -> bytes:
    [name] = [name for name in contents if name.endswith(end)]
    return contents[name]


def metadata(contents: dict[str, bytes]) -> Message:
    return message_from_bytes(ending(contents, ".dist-info/METADATA"))


def test_licence_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert text.rstrip().endswith("limitations under the License.")


def test_licence_travels_with_the_wheel(contents: dict[str, bytes]) -> None:
    assert metadata(contents)["License-Expression"] == "Apache-2.0"
    assert metadata(contents)["License-File"] == "LICENSE"
    assert ending(contents, ".dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_data_files_are_in_the_wheel(contents: dict[str, bytes]) -> None:
    grammars = {f"grammar/{file.name}" for file in (ROOT / "grammar").glob("*.lark")}
    console = {f"changefeed/http/console/{file.name}" for file in CONSOLE.iterdir()}
    assert grammars and console
    assert (DATA | grammars | console) - contents.keys() == set()


def test_tests_and_benchmarks_are_not(contents: dict[str, bytes]) -> None:
    folders = {name.partition("/")[0] for name in contents}
    assert {name for name in folders if not name.endswith(".dist-info")} == {
        "changefeed",
        "grammar",
        "shell",
        "sinks",
    }


def test_console_script_is_named(contents: dict[str, bytes]) -> None:
    assert b"changefeed = shell.cli:main" in ending(contents, ".dist-info/entry_points.txt")


#: The tests of a sink in somebody else's repository.
FOREIGN = """
import importlib, os, pkgutil
from contextlib import contextmanager
import pytest
import changefeed_testing
from changefeed_testing.sinks.conformance import CASES, run_case
from changefeed_testing.sinks.readers import file_bytes, read_files, visible_files
from sinks.registry import open_sink

class Harness:
    never = {"refuses_oversize": "a line has any length", "hides_secrets": "there is none"}
    secret, max_message_bytes = "", 0
    def __init__(self, folder):
        self.folder, self.topics = folder, {}
    def sink(self):
        return open_sink(f"file://{self.folder}", {})
    def topic(self, table):
        self.topics[table] = 1
        return table
    def partitions(self):
        return dict(self.topics)
    def read(self):
        return read_files(self.folder, self.topics)
    def raw(self):
        return b"".join(map(file_bytes, visible_files(self.folder)))

@pytest.mark.parametrize("case", [c for c in CASES if c.name.startswith("delivers")], ids=str)
def test_my_sink(case, tmp_path):
    assert run_case(case, Harness(tmp_path)) == ""

def test_modules():
    found = pkgutil.walk_packages(changefeed_testing.__path__, "changefeed_testing.")
    names = {importlib.import_module(module.name).__name__ for module in found}
    assert "changefeed_testing.sources.conformance" in names
"""


def test_an_author_elsewhere_runs_the_kits(checkout: Path, tmp_path: Path) -> None:
    """They are installed where the author's tests are, and need nothing else of this repository."""
    kits = built(checkout / "tests" / "kits", tmp_path / "wheel")
    install = ["pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "installed")]
    run(sys.executable, "-m", *install, kits)
    (tmp_path / "test_mine.py").write_text(FOREIGN)
    path = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
    (tmp_path / "conftest.py").write_text(path)
    said = run(sys.executable, "-P", "-m", "pytest", "-q", "test_mine.py", cwd=tmp_path)
    assert "8 passed" in said


def test_the_kits_have_the_version_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "tests" / "kits" / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert project["dependencies"] == [f"changefeed=={__version__}"]


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.extended  # downloads what it installs, about 130 MB
def test_the_core_works_in_a_clean_environment(
    wheel: Path, tmp_path: Path, postgres: Database, kafka: KafkaBroker, topic: str
) -> None:
    """``pip install changefeed`` has neither PySpark nor pandas. It runs feeds into files and
    Kafka, and refuses what needs an extra."""
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    empty = megabytes(tmp_path / "env")
    pip = (binaries / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
    versions = tmp_path / "versions.txt"
    locked = (ROOT / "requirements.lock").read_text()
    versions.write_text("\n".join(re.findall(r"^\S+==[^\\\n]+", locked, re.MULTILINE)))
    install = (*pip, "install", "--only-binary", ":all:", "--constraint", versions)
    run(*install, wheel)
    run(*pip, "check")
    assert megabytes(tmp_path / "env") - empty <= 370
    listed = run(*pip, "list", "--format", "freeze").lower()
    assert re.findall("^(?:pyspark|py4j|pandas|fastavro)==", listed, re.MULTILINE) == []

    program = (binaries / "changefeed", "--state", tmp_path / "state")
    assert "changefeed" in run(binaries / "changefeed", "--version", cwd=tmp_path)
    postgres.execute(f"CREATE TABLE {topic} (id int PRIMARY KEY, city text)")
    postgres.execute(f"INSERT INTO {topic} VALUES (1, 'Oslo'), (2, 'Rome')")
    for statement in (
        f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'",
        f"CREATE CHANGEFEED f FOR shop.public.{topic} INTO 'file://{tmp_path}/out'"
        " WITH initial_scan = 'only'",
        f"CREATE CHANGEFEED k FOR shop.public.{topic} INTO '{kafka.uri}'",
    ):
        run(*program, "-c", statement, cwd=tmp_path)
    node = subprocess.Popen([*program, "start"], cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        assert len(kafka.messages(topic, count=2, timeout=60)) == 2
        query = "CREATE CHANGEFEED INTO 'null://' AS SELECT id FROM shop.public." + topic
        until(lambda: list((tmp_path / "out").rglob("*.ndjson")) != [], "a file")
        verified = run(*program, "-c", "VERIFY CHANGEFEED k", cwd=tmp_path)
        assert len(verified.splitlines()) == 1  # the names of the columns, and no difference
        refused = subprocess.run(
            [*program, "-c", query], capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
        assert "HINT: pip install 'changefeed[spark]'" in refused.stderr
    finally:
        node.send_signal(signal.SIGTERM)
        _, errors = node.communicate(timeout=60)
    assert node.returncode == 0, errors

    run(*install, f"{wheel}[demo]")
    played = run(binaries / "changefeed", "demo", "--seconds", "1", cwd=tmp_path)
    assert "initial scan: 12 rows" in played
    assert '"Ada Lovelace"' in played
    assert "spark.sql is left out: pip install 'changefeed[spark]'" in played


def megabytes(folder: Path) -> float:
    """What the files of a folder occupy, the bytecode that pip compiles included."""
    blocks = sum(path.lstat().st_blocks for path in folder.rglob("*"))
    return blocks * 512 / 2**20
