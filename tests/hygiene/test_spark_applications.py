"""The files of ``deploy/spark`` can be read, and what they start exists. No service runs here;
``tests/e2e/test_spark_submit.py`` runs the programs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

import botocore.session
import botocore.validate
import pytest
import yaml
from packaging.version import Version

from changefeed.spark.packs import COMPLETE_LINE, packs
from grammar.parser import parse
from shell.cli import cli
from tests.docs.blocks import blocks
from tests.hygiene.test_deploy import DEPLOY, ROOT, check_command, check_variables

FOLDER = DEPLOY / "spark"
NODE = "changefeed_node.py"
#: Options of spark-submit that the files use.
SUBMIT = {"--master", "--deploy-mode", "--packages", "--conf", "--archives"}


def check_arguments(words: Sequence[str]) -> None:
    """``words`` are a command line of changefeed that runs on the session that exists."""
    context = cli.make_context("changefeed", list(words))
    assert context.params["master"] == "existing"
    for text in context.params["commands"]:
        parse(text)
    if not context.params["commands"]:
        check_command([*context._protected_args, *context.args])


def check_spark(packages: Sequence[str], properties: dict[str, str]) -> None:
    """The jars are those of jars.lock, and Delta's extension is there."""
    known = packs(COMPLETE_LINE)
    locked = {":".join(jar.coordinates) for each in known.values() for jar in each.jars}
    assert set(packages) <= locked
    assert properties["spark.sql.extensions"] == known["delta"].extension


def check_submit(words: Sequence[str]) -> None:
    """A command line of spark-submit."""
    program = next(number for number, word in enumerate(words) if word.endswith(".py"))
    assert words[program].rpartition("/")[2] == NODE
    pairs = list(zip(words[1:program:2], words[2:program:2], strict=True))
    assert {name for name, _ in pairs} <= SUBMIT
    properties = dict(value.split("=", 1) for name, value in pairs if name == "--conf")
    check_spark([value for name, value in pairs if name == "--packages"], properties)
    (archive,) = (value for name, value in pairs if name == "--archives")
    assert properties["spark.executorEnv.PYTHONPATH"] == "./" + archive.partition("#")[2]
    check_arguments(words[program + 1 :])


def check_aws(service: str, operation: str, request: dict[str, Any]) -> None:
    """``request`` has the members that the API knows and requires."""
    model = botocore.session.get_session().get_service_model(service).operation_model(operation)
    report = botocore.validate.ParamValidator().validate(request, model.input_shape)
    assert not report.has_errors(), report.generate_report()


def test_the_command_of_the_page() -> None:
    (block,) = (each for each in blocks("docs/spark-applications.md") if each.language == "sh")
    pack, submit = map(shlex.split, block.commands())
    check_command(pack[1:])
    check_submit(submit)
    assert f"{pack[-1]}#libraries" in submit


def test_the_step_of_emr() -> None:
    request = json.loads((FOLDER / "emr-step.json").read_text())
    check_aws("emr", "AddJobFlowSteps", request)
    (step,) = request["Steps"]
    check_submit(step["HadoopJarStep"]["Args"])


def test_the_job_of_databricks() -> None:
    job = json.loads((FOLDER / "databricks-job.json").read_text())
    (task,), (cluster,) = job["tasks"], job["job_clusters"]
    assert task["job_cluster_key"] == cluster["job_cluster_key"]
    program = task["spark_python_task"]
    assert program["python_file"].rpartition("/")[2] == NODE
    check_arguments(program["parameters"])
    check_spark([], cluster["new_cluster"]["spark_conf"])
    check_variables(list(cluster["new_cluster"]["spark_env_vars"]))


def test_the_job_of_glue() -> None:
    request = json.loads((FOLDER / "glue-job.json").read_text())
    check_aws("glue", "CreateJob", request)
    script = request["Command"]["ScriptLocation"].rpartition("/")[2]
    options = re.findall(r'add_argument\("(--\w+)"', (FOLDER / script).read_text())
    assert set(request["DefaultArguments"]) == {*options, "--additional-python-modules"}


def test_the_application_of_kubernetes() -> None:
    made = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())
    assert (made["apiVersion"], made["kind"]) == (
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
    )
    spec = made["spec"]
    check_arguments(spec["arguments"])
    check_spark(spec["deps"]["packages"], spec["sparkConf"])
    check_variables([each["name"] for each in spec["driver"]["env"]])
    image = (FOLDER / "Dockerfile").read_text()
    program = spec["mainApplicationFile"].removeprefix("local://")
    assert f"install -D deploy/spark/{NODE} {program}" in image
    assert f'"pyspark=={spec["sparkVersion"]}"' in image
    assert str(Version(spec["sparkVersion"])).startswith(f"{COMPLETE_LINE}.")


def test_a_step_that_the_api_does_not_know_is_noticed() -> None:
    with pytest.raises(AssertionError, match="Unknown parameter"):
        check_aws("emr", "AddJobFlowSteps", {"JobFlowId": "j-1", "Steps": [{"Nam": "x"}]})


def test_each_file_is_on_the_page() -> None:
    page = (ROOT / "docs/spark-applications.md").read_text()
    assert [each.name for each in FOLDER.glob("*.*") if f"`{each.name}`" not in page] == []
