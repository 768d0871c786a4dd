"""The set-up: one sentence when something is missing, nothing at all when everything is there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from testkit.syntax import loaded

PROJECT = Path(__file__).resolve().parents[3]
IVY = ("exactly_once/sparkenv/ivy.xml", "exactly_once/sparkenv/ivy.sha256")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the set-up reads, in a fresh folder without ``.venv``."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "exactly_once" / "sparkenv").mkdir(parents=True)
    for name in ("pyproject.toml", *IVY):
        shutil.copy(PROJECT / name, project / name)
    for folder in ("distributions", "dev/tools"):
        shutil.copytree(PROJECT / folder, project / folder)
    return project


def run_setup(checkout: Path, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the set-up with these programs and those of a POSIX shell, and no others."""
    for tool in ("sh", "dirname"):
        if not (path / tool).exists():
            (path / tool).symlink_to(shutil.which(tool) or "")
    return subprocess.run(
        [path / "sh", checkout / "dev" / "tools" / "setup.sh", "example"],
        env={"PATH": str(path), "HOME": str(checkout.parent), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("there_is", ["no python", "an old python"])
def test_without_a_new_enough_python_one_sentence_says_what_to_install(checkout, tmp_path, there_is: str) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    if there_is == "an old python":
        program(path, "python3", "exit 1")  # what the question for the version ends with
    ended = run_setup(checkout, path)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith("Python 3.11 or newer") and "install it" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_python_without_venv_is_told_apart(checkout, tmp_path) -> None:
    program(tmp_path / "bin", "python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    ended = run_setup(checkout, tmp_path / "bin")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Python's venv module") and "install it" in ended.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS finds an installed Java without PATH and JAVA_HOME")
@pytest.mark.parametrize(("release", "says"), [(None, "No Java was found: install Java 17"), ("11.0.2", "too old:")])
def test_without_a_new_enough_java_one_sentence_says_what_to_install(
    checkout, tmp_path, release: str | None, says: str
) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "exactly_once", checkout / "exactly_once", ignore=ignored, dirs_exist_ok=True)
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "bin").mkdir()
    environment = {}
    if release:
        (tmp_path / "jdk").mkdir()
        program(tmp_path / "jdk" / "bin", "java", "")
        (tmp_path / "jdk" / "release").write_text(f'JAVA_VERSION="{release}"\n')
        environment["JAVA_HOME"] = str(tmp_path / "jdk")
    ended = run_setup(checkout, tmp_path / "bin", **environment)
    assert ended.returncode == 1 and says in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1 and "Traceback" not in ended.stderr


def test_the_trial_of_the_broker_needs_no_package_that_comes_later() -> None:
    """It runs while pip installs the rest."""
    from tools.setup import FIRST

    # `make coverage` has its own package loaded in every process
    asked = "import sys; print(*sys.modules); import exactly_once_local.cluster.embedded_broker; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", asked], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert imported.returncode == 0, imported.stderr
    before, after = ({name.split(".")[0] for name in line.split()} for line in imported.stdout.splitlines())
    loaded = after - before
    packages = importlib.metadata.packages_distributions()
    needed = {distribution for name in loaded for distribution in packages.get(name, [])}
    assert needed - {"pyspark-kafka-exactly-once", "exactly-once-local"} <= set(FIRST) and "psutil" in needed


def test_what_the_set_up_imports_is_there() -> None:
    """It is silent when it fails: then each process of the first run compiles what it imports."""
    from tools.setup import IMPORTS

    _, statement = IMPORTS["example"]
    names = statement.removeprefix("import ").split(", ")
    assert [name for name in names if importlib.util.find_spec(name) is None] == []


@pytest.fixture
def setup(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The set-up as a module, on the fresh checkout, with its steps recorded in ``ran`` instead of done."""
    module = loaded(PROJECT / "dev" / "tools" / "setup.py")
    monkeypatch.setattr(module, "PROJECT", checkout)
    monkeypatch.setattr(module, "STAMP", checkout / "stamp")
    monkeypatch.setattr(module.jars, "is_resolved", lambda: True)
    monkeypatch.setattr(module, "IMPORTS", dict.fromkeys(module.IMPORTS, ("-c", "pass")))
    module.ran = []
    monkeypatch.setattr(module, "install_packages", lambda *wanted: module.ran.append(wanted) or 0)
    monkeypatch.setattr(module, "beside", lambda *command: closing(Ended(0)))
    return module


class Ended:
    """What runs beside pip, at its end."""

    def __init__(self, code: int):
        self.code = code

    def wait(self) -> int:
        return self.code

    def close(self) -> None:
        pass


def test_another_version_of_the_package_is_another_set_up(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mishap: exactly-once --version, a wheel and a bill of materials say the version of before."""
    before = setup.fingerprint()
    monkeypatch.setattr(setup, "__version__", "9.9.9")
    assert setup.fingerprint() != before


def test_a_complete_set_up_is_not_done_again(setup: ModuleType) -> None:
    assert setup.main("example") == 0 and setup.ran == [setup.FIRST, setup.WANTED["example"]]
    assert setup.main("example") == 0 and len(setup.ran) == 2


def test_the_whole_set_up_follows_that_of_the_example_and_has_it(setup: ModuleType) -> None:
    """Mishap: make test runs without pytest, or make run asks the package index again at each change of the two."""
    setup.main("example")
    assert setup.main("dev") == 0 and len(setup.ran) == 4
    assert setup.main("example") == setup.main("dev") == 0 and len(setup.ran) == 4


@pytest.mark.parametrize(
    "changed",
    [
        "pyproject.toml",
        "distributions/dagster-exactly-once/pyproject.toml",
        "distributions/exactly-once-local/pyproject.toml",
        "distributions/constraints.txt",
        *IVY,
    ],
)
def test_a_change_of_what_it_depends_on_sets_up_again(setup: ModuleType, changed: str) -> None:
    setup.main("dev")
    with (setup.PROJECT / changed).open("a") as stream:
        stream.write("\n")
    assert setup.main("dev") == 0 and len(setup.ran) == 4


def test_a_cleared_cache_folder_sets_up_again(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.main("dev")
    monkeypatch.setattr(setup.jars, "is_resolved", lambda: False)
    assert setup.main("dev") == 0 and len(setup.ran) == 4


@pytest.mark.parametrize("ending", ["interrupted", "failed"])
def test_a_set_up_that_did_not_end_is_not_taken_for_complete(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    def compile_imports(wanted: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        if ending == "interrupted":
            once.setattr(setup, "compile_imports", compile_imports)
        else:
            once.setattr(setup, "beside", lambda *command: closing(Ended(1)))
        assert setup.main("dev") == (130 if ending == "interrupted" else 1)
    assert "Traceback" not in capsys.readouterr().err
    setup.ran.clear()
    assert setup.main("dev") == 0 and setup.ran == [setup.FIRST, setup.WANTED["dev"]]


def test_jars_that_cannot_be_had_are_one_sentence(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolve(say: object) -> None:
        raise setup.jars.JarsUnusable("no x.jar", "Try again")

    monkeypatch.setattr(setup.jars, "resolve", resolve)
    assert setup.jars_and_broker() == 1
    said = capsys.readouterr().err
    assert "no x.jar" in said and "Traceback" not in said


def test_what_runs_beside_pip_ends_with_it() -> None:
    """Mishap: pip fails, the shell shows its prompt, and downloads go on behind it."""
    from tools.setup import beside

    with beside(sys.executable, "-c", "import time; time.sleep(600)") as process:
        assert process.poll() is None
    assert process.returncode not in (None, 0)


def test_the_constraints_pin_every_package_exactly_and_no_host() -> None:
    pins = (PROJECT / "distributions" / "constraints.txt").read_text()
    lines = [line for line in pins.splitlines() if line and not line.lstrip().startswith("#")]
    assert all("==" in line for line in lines)
    assert "://" not in pins + (PROJECT / IVY[0]).read_text()
    assert os.access(PROJECT / ".ci" / "run", os.X_OK)
