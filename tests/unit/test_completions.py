"""``exactly-once completions``: a real bash loads the script and completes with it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from exactly_once.ops import cli
from exactly_once.ops.cli import completions

#: Does what bash does at a press of the tabulator, for the words behind the script's name.
PRESS = r"""
source "$1"
shift
declared=$(complete -p exactly-once) || exit 9
[[ $declared =~ -F\ ([^ ]+) ]] || exit 8
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
"${BASH_REMATCH[1]}" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def bash_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    assert cli.main(["completions", "bash"]) == 0
    file = tmp_path / "exactly-once.bash"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tr", {"transactions"}),
        ("transactions ", {"list", "explain", "commit", "abort"}),
        ("transactions list --s", {"--sink"}),
        ("checkpoint repair /c --pl", {"--plan-anew"}),
        ("--bootstrap-servers b:9092 rec", {"recover"}),
        ("transactions --json ex", {"explain"}),
        ("completions ", set(completions.SHELLS)),
    ],
)
def test_bash_completes_commands_verbs_and_flags(bash_script: Path, typed: str, offered: set[str]) -> None:
    """Mishap: at night somebody guesses the flag of a command that ends transactions."""
    words = ["exactly-once", *typed.split(" ")]
    pressed = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", PRESS, "bash", str(bash_script), *words], capture_output=True, text=True
    )
    assert pressed.returncode == 0 and pressed.stderr == "", pressed
    assert set(pressed.stdout.split()) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_paths_where_a_path_belongs(bash_script: Path, tmp_path: Path) -> None:
    """Mishap: a repair of the checkpoint beside the one that was meant."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "client.properties").touch()
    for typed, offered in (
        (f"checkpoint inspect {tmp_path}/c", {f"{tmp_path}/checkpoints"}),
        (f"doctor --checkpoint {tmp_path}/c", {f"{tmp_path}/checkpoints"}),
        (f"--command-config {tmp_path}/cl", {f"{tmp_path}/client.properties"}),
    ):
        words = ["exactly-once", *typed.split(" ")]
        command = ["bash", "--norc", "--noprofile", "-c", PRESS, "bash", str(bash_script), *words]
        assert set(subprocess.run(command, capture_output=True, text=True).stdout.split()) == offered


@pytest.mark.parametrize("shell", completions.SHELLS)
def test_the_script_of_every_shell_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against a shell that we name and that the library dropped."""
    assert cli.main(["completions", shell]) == 0
    printed = capsys.readouterr().out
    commands = ("transactions", "checkpoint", "recover", "doctor", "metrics", "demo", "completions")
    assert [c for c in commands if not re.search(rf"\b{c}\b", printed)] == []


def test_without_the_extra_the_error_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mishap: a traceback goes into the file that every new shell sources."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completions", "bash"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("EO-EXTRA: ")
    assert "pip install 'pyspark-kafka-exactly-once[completions]'" in printed.err
