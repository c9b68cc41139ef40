"""What stands in the repository: no addresses of registries, no paths of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

#: Split, so that this file does not name what it looks for.
_REGISTRIES = [
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "repo1." + "maven" + ".org",
    "repo." + "maven" + ".apache.org",
    "registry." + "npmjs.org",
    "proxy." + "golang.org",
]
_HOMES = re.compile(r"(?<![\w.])/(?:root|home/\w+|Users/\w+)/")


def tracked() -> list[Path]:
    """Files git knows, without binary ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, timeout=30
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [file for file in files if file.is_file() and b"\0" not in file.read_bytes()[:8000]]


def test_no_registry_is_named() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {host}"
        for file in tracked()
        for host in _REGISTRIES
        if host in file.read_text(errors="replace")
    ]
    assert found == []


def test_no_path_of_one_machine() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for file in tracked()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if _HOMES.search(line)
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    modules = [file for file in tracked() if file.suffix == ".py" and file.stat().st_size]
    assert len(modules) > 20
    silent = [
        str(file.relative_to(ROOT))
        for file in modules
        if ast.get_docstring(ast.parse(file.read_text())) is None
    ]
    assert silent == []


def test_links_between_pages_resolve() -> None:
    broken = []
    for page in (file for file in tracked() if file.suffix == ".md"):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as hosts of markdown make them."""
    headings = re.findall(r"^#+ +(.+?) *$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def test_lock_holds_every_dependency() -> None:
    """A dependency that is in pyproject but not locked would be missing after make install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    # dev names the other extras, whose requirements are in the list by themselves.
    wanted = [text for text in wanted if not text.startswith(f"{project['name']}[")]
    locked = _locked("requirements.lock") | _locked("requirements-java.lock")
    missing = [
        text
        for text in wanted
        if not any(
            requirement.specifier.contains(version)
            for requirement in [Requirement(text)]
            for version in locked.get(canonicalize_name(requirement.name), ())
        )
    ]
    assert missing == []


def test_every_dependency_has_bounds() -> None:
    """A release of tomorrow that breaks us comes in by a change of ours."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    assert len(wanted) > 20
    for text in wanted:
        if text.startswith(f"{project['name']}["):
            continue
        operators = {part.operator for part in Requirement(text).specifier}
        assert operators & {">=", "==", "~="}, f"{text} has no lower bound"
        assert operators & {"<", "==", "~="}, f"{text} has no upper bound"


@pytest.mark.parametrize("lock", sorted(path.name for path in ROOT.glob("*.lock")))
def test_every_locked_package_has_a_digest(lock: str) -> None:
    """What is installed is what was locked, whatever a registry or a mirror answers."""
    logical = (ROOT / lock).read_text().replace("\\\n", " ").splitlines()
    packages = [
        line for line in logical if line.strip() and not line.lstrip().startswith(("#", "-"))
    ]
    assert packages
    for line in packages:
        assert re.match(r"[\w.-]+==\S+", line), f"{line[:60]} is not of one version"
        assert re.search(r"--hash=sha256:[0-9a-f]{64}(\s|$)", line), f"{line[:60]} has no digest"


def test_demo_lock_is_a_part_of_the_whole_lock() -> None:
    """Both environments run the same versions, and the demo's holds all that running needs."""
    everything, demo = _locked("requirements.lock"), _locked("requirements-demo.lock")
    assert {name: everything.get(name) for name in demo} == demo
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["demo"]]
    assert [text for text in wanted if canonicalize_name(Requirement(text).name) not in demo] == []
    assert "pytest" not in demo


def test_locks_are_installed_without_the_resolver() -> None:
    """pip's resolver looks at versions newer than the lock where a package asks for an extra of
    another (``google-auth[pyopenssl]``), and then refuses the lock for lack of their digest."""
    installs = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if "--require-hashes" in line
    ]
    assert len(installs) == 3
    for line in installs:
        assert "--no-deps" in line, line.strip()


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("requirements.lock", ("demo", "dev")), ("requirements-demo.lock", ("demo", "spark"))],
)
def test_lock_holds_what_its_packages_require(lock: str, extras: tuple[str, ...]) -> None:
    """A package's own requirement that has no line in the lock would be missing after make install.

    A package that is no longer ours to require may still be another's: an environment that was
    made before keeps it and hides that.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    roots = [*project["dependencies"]]
    for extra in extras:
        roots += project["optional-dependencies"][extra]
    locked = _locked(lock)
    seen = dict(_required([Requirement(text) for text in roots], project["optional-dependencies"]))
    assert len(seen) > len(roots)
    assert {name: by for name, by in seen.items() if name not in locked} == {}


def _required(
    roots: list[Requirement], own_extras: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """Names of all packages that these requirements need on this machine, each with who asks."""
    waiting = [(requirement, "pyproject.toml") for requirement in roots]
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, by = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        if name == "changefeed":  # an extra that names other extras of ours
            texts = [text for extra in extras for text in own_extras[extra]]
        else:
            yield name, by
            texts = distribution(name).requires or []
        for text in texts:
            needed = Requirement(text)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in extras or {""}
            ):
                waiting.append((needed, name))


def _locked(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text(), re.M):
        found.setdefault(canonicalize_name(package), []).append(version)
    return found
