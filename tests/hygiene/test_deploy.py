"""The files of ``deploy/`` can be read, and what they start exists. No image or chart runs here."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from changefeed import __version__
from changefeed.core.quantities import parse_duration, parse_size
from changefeed.log.objects import ObjectStore
from shell.cli import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/changefeed"
#: What a container starts without arguments of its own.
PORT = 8080


def check_command(words: Sequence[str]) -> dict[str, Any]:
    """The parameters of ``changefeed WORDS``, which must be a command that exists."""
    command = cli.commands[words[0]]
    with command.make_context(words[0], list(words[1:])) as context:
        return context.params


def check_variables(names: Sequence[str]) -> None:
    """Variables of ours that nothing reads would have no effect."""
    code = "".join(path.read_text() for path in (ROOT / "shell").rglob("*.py"))
    assert [name for name in names if name.startswith("CHANGEFEED_") and name not in code] == []


def check_places(variables: dict[str, str]) -> None:
    """State and log of a node are addresses that it takes."""
    assert urlsplit(variables["CHANGEFEED_STATE"]).scheme == "postgresql"
    ObjectStore(variables["CHANGEFEED_LOG"])


def rendered(text: str) -> str:
    """A template of the chart with the values that it comes with."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    given = {f"Values.{name}": str(value) for name, value in values.items()}
    given |= {"Release.Name": "feeds"}
    return re.sub(r"{{ \.([\w.]+) }}", lambda found: given[found[1]], text)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(KeyError):
        check_command(["begin"])
    with pytest.raises(click.NoSuchOption):
        check_command(["start", "--prot", "1"])


def test_the_unit_of_systemd() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "changefeed.service").read_text())
    service = unit["Service"]
    assert service["Type"] == "notify"
    # Longer than any lease: a node that waits for the state is no node that hangs.
    assert int(service["WatchdogSec"]) >= 60
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "changefeed"
    assert check_command(words)["http"] == ("127.0.0.1", PORT)
    lines = (DEPLOY / "changefeed.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    check_variables(list(variables))
    check_places(variables)


def instructions() -> Iterator[tuple[str, str]]:
    """Name and text of each instruction of the Dockerfile."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def test_the_image() -> None:
    found = dict(instructions())
    assert json.loads(found["ENTRYPOINT"]) == ["changefeed"]
    assert check_command(json.loads(found["CMD"]))["http"] == ("0.0.0.0", PORT)
    assert found["EXPOSE"] == str(PORT) and found["USER"] == "changefeed"
    extras = re.findall(r"EXTRAS=\[(\w+)\]", (DEPLOY / "Dockerfile").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras and set(extras) <= project["optional-dependencies"].keys()


def test_the_services_of_compose() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    nodes = {name: each for name, each in services.items() if each.get("image") == "changefeed"}
    assert len(nodes) == 2
    for each in nodes.values():
        check_command(each["command"])
        check_variables(list(each["environment"]))
        check_places(each["environment"])
        assert (DEPLOY / each["build"]["context"] / each["build"]["dockerfile"]).is_file()
        assert each["depends_on"].keys() <= services.keys()
        assert urlsplit(each["environment"]["CHANGEFEED_STATE"]).hostname in services
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {
        target for row in scraped for each in row["static_configs"] for target in each["targets"]
    }
    assert targets == {f"{name}:{PORT}" for name in nodes}
    mounted = [volume.split(":")[0] for volume in services["prometheus"]["volumes"]]
    assert all((DEPLOY / path).is_file() for path in mounted)


def test_the_chart() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (chart["name"], chart["appVersion"]) == (project["name"], __version__)
    made = {}
    for path in (CHART / "templates").iterdir():
        found = yaml.safe_load(rendered(path.read_text()))
        made[found["kind"]] = found
    assert made.keys() == {"Deployment", "PodDisruptionBudget"}
    spec = made["Deployment"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    params = check_command(container["args"])
    assert params["http"] == ("0.0.0.0", container["ports"][0]["containerPort"])
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert params["lease"] == parse_duration(values["lease"])
    assert parse_size(values["maxDisk"]) < parse_size(values["disk"].replace("Gi", "GiB"))
    # Nothing of a pod is kept.
    assert all("emptyDir" in volume for volume in spec["template"]["spec"]["volumes"])
    path = container["livenessProbe"]["httpGet"]["path"]
    assert f'"{path}"' in (ROOT / "changefeed/http/application.py").read_text()
    labels = spec["template"]["metadata"]["labels"]
    for kind in made.values():
        assert kind["spec"]["selector"]["matchLabels"].items() <= labels.items()
