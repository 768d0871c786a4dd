"""What keeps the project workable for the next person: types everywhere, workflows that call what exists, pages for
contributors.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from exactly_once.sparkenv.java import OLDEST_JAVA
from exactly_once.tools.cli.arguments import build

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

#: Folders with Python that no type checker reads: the tests themselves, whose support it does read.
UNTYPED = {"tests", "deploy"}


def typed_folders() -> set[str]:
    """The folders of a checkout that have Python of the project."""
    listed = {path.parent for path in (*ROOT.glob("*/*.py"), *ROOT.glob("dev/*/*.py"))}
    names = {folder.relative_to(ROOT).as_posix() for folder in listed}
    return {name for name in names if not name.startswith((".", "build", "dist"))} - UNTYPED | {"dev/testkit"}


def test_every_folder_with_python_is_type_checked() -> None:
    """Guards against a benchmark that calls what its library has renamed: it fails when a release is measured."""
    assert set(PROJECT["tool"]["mypy"]["files"]) == typed_folders()


def test_a_commit_is_type_checked_when_it_touches_any_of_these_folders() -> None:
    """Guards against a hook whose pattern forgets a folder, so that the mistake is found by CI an hour later."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    [pattern] = [hook["files"] for hook in hooks if hook["id"] == "mypy"]
    assert [name for name in typed_folders() if not re.match(pattern, f"{name}/deep/module.py")] == []


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def loaded(path: Path) -> dict[Any, Any]:
    """The YAML document of a file."""
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def spread(text: str, matrix: dict[str, Any]) -> set[str]:
    """A step's text with each value of the matrix in place of its name."""
    texts = {text}
    for name in {*re.findall(r"\$\{\{ matrix\.(\w+) \}\}", text)}:
        values = [*matrix.get(name, []), *(one[name] for one in matrix.get("include", []) if name in one)]
        assert values, f"the matrix has no {name}"
        texts = {t.replace(f"${{{{ matrix.{name} }}}}", v) for t in texts for v in values}
    return texts


def commands(workflow: dict[Any, Any]) -> set[str]:
    """Every line that its steps run."""
    return {
        command
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "run" in step
        for line in step["run"].splitlines()
        for command in spread(line, job.get("strategy", {}).get("matrix", {}))
    }


def parts() -> set[str]:
    """What ``.ci/run`` can be asked for."""
    named = re.findall(r'^(?:PARTS|MORE)="(.+)"$', (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)
    assert len(named) == 2
    return set(" ".join(named).split())


def targets() -> set[str]:
    """What ``make`` can be asked for."""
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_command_of_a_workflow_exists(path: Path) -> None:
    """Guards against a target that was renamed: the nightly faults would fail, and a release stop half-way."""
    found = commands(loaded(path))
    for words in (command.split() for command in found):
        if words[0] == "make":
            assert words[1] in targets(), words
        elif words[0] == ".ci/run":
            assert set(words[1:]) <= parts(), words
        else:
            assert words[0] in {"python", "test"}, words
    assert {command.split()[0] for command in found} & {"make", ".ci/run"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_the_form_that_its_host_reads(path: Path) -> None:
    """Guards against a file that the host refuses as a whole: nothing runs, and no pull request is red."""
    workflow = loaded(path)
    assert workflow["name"] and set(workflow[True]) <= {"push", "pull_request", "schedule", "workflow_dispatch"}  # on:
    for job in workflow["jobs"].values():
        assert job["runs-on"] == "ubuntu-24.04" and job.get("needs") in {None, *workflow["jobs"]}
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step) and set(step) <= {"run", "uses", "with", "name", "if"}
            command = re.sub(r"\$\{\{.*?\}\}", "true", step.get("run", ""))
            assert subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True).stderr == ""


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_of_a_workflow_has_an_end_and_few_rights(path: Path) -> None:
    """Guards against a stream that hangs for six hours of a paid machine, and against an action that may push."""
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert name == "publish" or job["timeout-minutes"] <= 240
        assert all("@" in step["uses"] for step in job["steps"] if "uses" in step)


def parts_of(workflow: dict[Any, Any]) -> set[str]:
    """The parts that its steps run."""
    return {part for command in commands(workflow) if command.startswith(".ci/run") for part in command.split()[1:]}


def test_hosted_ci_runs_every_part_and_every_python() -> None:
    """Guards against a part that only one machine knows. Its short rounds of faults are long ones each night."""
    ci, nightly = (loaded(ROOT / ".github" / "workflows" / f"{name}.yml") for name in ("ci", "nightly"))
    assert parts() - parts_of(ci) - parts_of(nightly) == {"faults", "soak", "pythons"}
    matrix = ci["jobs"]["parts"]["strategy"]["matrix"]
    named = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if "Python :: 3." in c]
    assert [*matrix["python"], *(one["python"] for one in matrix["include"])] == named


@pytest.fixture
def ci(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """``.ci/run`` with these arguments, on a ``make`` that only notes what it is asked for, and fails for ``fails``."""
    said = tmp_path / "said"
    for name, does in {
        "make": f'echo "$1" >>{said}; [ "$1" != "$FAILS" ]',
        "java": "exit 0",
        **dict.fromkeys(("chromium", "krb5kdc", "krb5-config", "cc"), "exit 0"),
        "apt-get": "exit 1",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)

    def run(*arguments: str, fails: str = "none") -> tuple[int, list[str]]:
        said.write_text("")
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FAILS": fails}
        done = subprocess.run([ROOT / ".ci" / "run", *arguments], env=environment, capture_output=True)
        return done.returncode, said.read_text().split()

    return run


def test_ci_without_an_argument_runs_everything(ci: Callable[..., tuple[int, list[str]]]) -> None:
    """Guards against a part that has a name and that nobody calls."""
    code, asked = ci()
    assert code == 0
    assert " ".join(dict.fromkeys(asked)) == (
        "setup check test test-restart test-sparks test-upgrades guard test-newest-kafka test-extras "
        "test-kerberos test-pythons tutorial test-kafkas test-managed sbom audit coverage faults soak test-long"
    )


def test_ci_runs_the_parts_that_are_named_and_refuses_another(ci: Callable[..., tuple[int, list[str]]]) -> None:
    """Guards against a misspelt part, whose job would be green because nothing ran."""
    assert ci("newest-kafka", "unit") == (0, ["test-newest-kafka", "test-unit"])
    assert ci("unit", "tets") == (2, [])


@pytest.mark.parametrize(("fails", "ends"), [("guard", True), ("test-extras", True), ("sbom", False), ("soak", False)])
def test_ci_ends_at_what_must_pass_and_goes_on_behind_what_is_only_said(
    ci: Callable[..., tuple[int, list[str]]], fails: str, ends: bool
) -> None:
    """Guards against a function around a part that swallows its exit code."""
    code, asked = ci(fails=fails)
    assert (code != 0, asked[-1]) == ((True, fails) if ends else (False, "test-long"))


PAGES = ["CONTRIBUTING.md", *(f".github/{name}.md" for name in ("CODE_OF_CONDUCT", "RELEASE", "pull_request_template"))]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_for_contributors_names_is_there(page: str) -> None:
    """Guards against a newcomer whose first command fails."""
    text, folder = (ROOT / page).read_text(encoding="utf-8"), (ROOT / page).parent
    assert set(re.findall(r"`make ([a-z0-9-]+)", text)) <= targets()
    for words in re.findall(r"`\.ci/run ([a-z -]+)`", text):
        assert set(words.split()) <= parts()
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert target.startswith("https://") or (folder / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#]+\.md)#([^)]+)\)", text):
        titles = re.findall(r"^#+ (.+)$", (folder / target).read_text(encoding="utf-8"), re.M)
        assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_a_bug_report_has_what_the_doctor_says() -> None:
    """Guards against three days of questions for what one command prints."""
    form = loaded(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")
    fields = {field["id"]: field for field in form["body"] if "id" in field}
    assert fields["doctor"]["validations"]["required"]
    asked = re.findall(r"`exactly-once ([^`]+)`", str(form))
    assert [words.split()[0] for words in asked] == ["doctor", "verify"]
    for words in asked:
        assert build().parse_args(words.replace("SINK", "orders").split()).json


def test_every_form_of_an_issue_can_be_shown() -> None:
    """Guards against a form that the host of the repository leaves out without a word."""
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = loaded(path)
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= set(form)
            assert all(field["attributes"].get("label") for field in form["body"] if field["type"] != "markdown")


def test_the_container_for_development_has_a_python_and_a_java_that_are_enough() -> None:
    """Guards against a container whose set-up ends with a request for another Java."""
    folder = ROOT / ".devcontainer"
    container = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
    text = (folder / container["build"]["dockerfile"]).read_text(encoding="utf-8")
    assert f"openjdk-{OLDEST_JAVA}-" in text
    assert PROJECT["project"]["requires-python"] == f">={re.search(r'FROM python:([0-9.]+)', text)[1]}"  # type: ignore[index]
    assert container["postCreateCommand"].split() == ["make", "setup"]
