"""``make test-extras`` tries every extra, ``make test-pythons`` every other Python; both name what breaks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from testkit.syntax import loaded

ROOT = Path(__file__).parents[3]
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def tool() -> ModuleType:
    return loaded(ROOT / "dev" / "tools" / "extras.py")


@pytest.fixture
def pythons(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``dev/tools/pythons.py``, on a machine with this Python and one more."""
    module = importlib.import_module("tools.pythons")
    other = next(v for v in module.VERSIONS if v != OWN)
    monkeypatch.setattr(module, "found_pythons", lambda: {OWN: sys.executable, other: "/usr/bin/other"})
    return module


def test_every_distribution_and_every_extra_is_tried_alone(tool: ModuleType) -> None:
    """Guards against an extra that nobody has installed without the others; ``dev`` is that of a checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    others = set()
    for path in (ROOT / "distributions").glob("*/pyproject.toml"):
        extras = tomllib.loads(path.read_text(encoding="utf-8"))["project"].get("optional-dependencies", {})
        others |= {path.parent.name, *(f"{path.parent.name}[{extra}]" for extra in extras)}
    assert set(tool.PROMISES) == {"", *others, *project["optional-dependencies"]} - {"dev"}


def test_every_supported_python_is_tried_where_it_is_found(tool: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert list(tool.VERSIONS) == named
    found = tool.found_pythons()
    assert sys.executable in found.values()
    assert list(found) == [version for version in tool.VERSIONS if version in found], "the oldest first"


def test_a_program_that_is_another_python_is_not_taken(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a version manager's stand-in, which fails or runs whatever is switched on."""
    for name, does in (("python3.13", "exit 127"), ("python3.12", "echo 3.11")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    assert list(tool.candidates("3.12")) == list(tool.candidates("3.13")) == []


def test_a_step_that_fails_tells_its_command_and_what_it_printed(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(tool.Failed, match="ended with 3:\nout\nerr\n"):
        tool.run(["sh", "-c", "echo out; echo err >&2; exit 3"], tmp_path)


def test_a_file_that_an_import_leaves_is_seen_and_byte_code_is_not(tool: ModuleType, tmp_path: Path) -> None:
    before = tool.files(tmp_path)
    (tmp_path / "module.pyc").touch()
    assert tool.files(tmp_path) == before
    (tmp_path / "derby.log").touch()
    assert [name for name, _ in tool.files(tmp_path) - before] == ["derby.log"]


def test_what_is_not_tested_is_named(
    pythons: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against a green CI that looked at one Python of three."""
    tested = []
    monkeypatch.setattr(pythons, "test_on", lambda python, folder, arguments: tested.append(python) or -9)
    assert pythons.main([]) == 1 and tested == ["/usr/bin/other"], "its failure is that of the whole"
    assert sum("left out, " in line for line in capsys.readouterr().out.splitlines()) == 1
    monkeypatch.setenv("TEST_BUDGET_S", str(pythons.EACH_S - 1))
    assert pythons.main([]) == 0 and tested == ["/usr/bin/other"]
    assert sum(f"less than {pythons.EACH_S} s are left" in line for line in capsys.readouterr().out.splitlines()) == 1


def test_an_environment_that_cannot_be_made_fails_its_python(
    pythons: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against a Python that counts as tested, as nothing could be installed for it."""
    assert pythons.test_on("/bin/false", tmp_path, []) == 1
    assert "/bin/false -m venv" in capsys.readouterr().err


def test_what_an_extra_promises_works_where_all_of_them_are_installed(tool: ModuleType) -> None:
    """`make test-extras` takes minutes, and CI has them only when they are left: a renamed function stayed unseen."""
    # the others say that a package is missing, need another distribution, or a compiler
    others = {"", *tool.BUILT_BY, *(name for name in tool.PROMISES if name.startswith(tool.DAGSTER))}
    promises = {name: code for name, code in tool.PROMISES.items() if name not in others}
    assert len(promises) >= 9
    code = "\n".join(f"exec({text!r}, {{}})" for text in promises.values())
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
