"""The wheel built from the repository: what is in it, and that it works in a clean environment."""

from __future__ import annotations

import os
import re
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

ROOT = Path(__file__).parents[2]

#: Files that are not Python and that the program reads when it runs.
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


def without(package: str, lock: str) -> str:
    """A lock file less one package, which must be in it."""
    shorter, count = re.subn(rf"(?m)^{package}==.*\n(    .*\n)*", "", lock)
    assert count == 1
    return shorter


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
    assert grammars
    assert (DATA | grammars) - contents.keys() == set()


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
@pytest.mark.extended  # downloads what it installs, about 130 MB
def test_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    """Only what running and the demo need is installed, less PySpark, which is large and is not
    started here: no package of the tests."""
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    pip = (binaries / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
    lock = tmp_path / "lock.txt"
    lock.write_text(without("pyspark", (ROOT / "requirements-demo.lock").read_text()))
    run(*pip, "install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", lock)
    run(*pip, "install", "--no-deps", wheel)
    checked = subprocess.run((*pip, "check"), capture_output=True, text=True, timeout=60)
    complaints = checked.stdout.splitlines()
    assert [line for line in complaints if "requires pyspark, which is not" not in line] == []
    program = binaries / "changefeed"
    state = tmp_path / "state"
    assert "changefeed" in run(program, "--version", cwd=tmp_path)
    assert "job_id" in run(program, "--state", state, "-c", "SHOW JOBS", cwd=tmp_path)
    played = run(program, "demo", "--seconds", "1", cwd=tmp_path)
    assert "initial scan: 12 rows" in played
    assert '"Ada Lovelace"' in played
