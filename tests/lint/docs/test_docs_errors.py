"""docs/errors.md has an entry for every code, with the reaction that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from dagster_exactly_once.runs import failures, history
from exactly_once.errors import ExactlyOnceError, all_errors
from testkit.syntax import ROOT, nodes

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")

WARNING = "EO-WARN-"

#: Longer entries are read twice.
LINES = 6


def entries() -> dict[str, str]:
    """The text below each heading of the third level."""
    parts = re.split(r"^### (.*)$", PAGE, flags=re.M)[1:]
    return {code: text.split("\n## ")[0].strip() for code, text in zip(parts[::2], parts[1::2], strict=True)}


#: What has the shape of a code, and is a name of others.
NO_CODES = {"SCRAM-SHA-256", "SCRAM-SHA-512"}


@cache
def codes() -> dict[str, bool]:
    """The code of every error class and of every end of a run, and whether a restart heals it."""
    found = {code: heals for _, code, _, heals in failures._SPARK} | {"UNCLASSIFIED": False}
    found |= dict.fromkeys(history._HOPELESS, False)
    for node in nodes():
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == failures.failure.__name__:
            code, heals = node.args[0], node.args[3] if len(node.args) > 3 else ast.Constant(True)
            if isinstance(code, ast.Constant) and isinstance(heals, ast.Constant):
                found[code.value] = heals.value
        if isinstance(node, ast.ClassDef):
            fields = {
                target.id: statement.value.value
                for statement in node.body
                if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
                for target in statement.targets
                if isinstance(target, ast.Name)
            }
            if str(fields.get("code", "")).startswith("EO-"):
                found[fields["code"]] = bool(fields.get("restart_heals", False))
    return found


def warnings() -> set[str]:
    """Every code that the engine logs."""
    texts = [n.value for n in nodes() if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {code for text in texts for code in re.findall(r"EO-WARN-[A-Z]+", text)}


def test_every_code_and_every_warning_has_its_entry_and_no_other() -> None:
    """The person on call looks for the code in the alert."""
    known = codes()
    assert {ExactlyOnceError.code, *all_errors()} <= set(known) and "EO-REFUSED" in known
    assert sorted(entries()) == sorted([*known, *warnings()])


def shown() -> set[str]:
    """Every text in the code that has the shape of a code: whoever meets one searches this page for it."""
    texts = [n.value for n in nodes() if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    python = {text for text in texts if re.fullmatch(r"[A-Z]{2,}(?:-[A-Z0-9]+)+", text)}
    java = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "java").rglob("*.java"))
    return (python | set(re.findall(r"\bEO-[A-Z]+(?:-[A-Z]+)*\b", java))) - NO_CODES


def test_whatever_looks_like_a_code_anywhere_in_the_product_is_on_the_page() -> None:
    """Mishap: PROCESS-GONE, the code after every kill -9, had no entry, and a search gave that of another."""
    listed = set(re.findall(r"^- `([A-Z]+(?:-[A-Z0-9]+)+)`", PAGE, flags=re.M))
    assert {"PROCESS-GONE", "HEALTH-STARTING", "DOCTOR-CLOCK", "CHECK-REJECTED", "SPARK-JVM-GONE"} <= shown()
    assert shown() - listed - set(entries()) == set()
    assert listed - shown() == set()


# by the page, which has each code: every process of the tests would read all of the code to name these tests
@pytest.mark.parametrize("code", [code for code in entries() if not code.startswith(WARNING)])
def test_an_entry_says_whether_a_restart_heals_as_the_code_does(code: str) -> None:
    """A supervisor goes by the code, a person by the text; they must do the same."""
    assert entries()[code].startswith(f"Restart: {'yes' if codes()[code] else 'no'}. ")


@pytest.mark.parametrize("code", entries())
def test_an_entry_says_what_is_safe_and_what_to_do_in_the_ui_and_in_the_shell(code: str) -> None:
    """Guards against an entry that explains, and leaves a person at night with the question what to do."""
    text = entries()[code]
    assert code.startswith(WARNING) or "\n- **Safe?** " in text
    assert "\n- **UI and shell:** " in text or ("\n- **UI:** " in text and "\n- **Shell:** " in text)
    assert len([line for line in text.splitlines() if line]) <= LINES


def test_an_unknown_failure_has_the_code_of_the_page() -> None:
    """Guards against a code that only the table of failures knows."""
    assert failures.diagnose(ValueError("?")).code == "UNCLASSIFIED"


def test_a_code_that_another_page_names_has_an_entry() -> None:
    """Guards against a page that sends people to a code of yesterday."""
    named = set()
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]:
        named |= set(re.findall(r"\bEO-[A-Z]+(?:-[A-Z]+)*\b", page.read_text(encoding="utf-8")))
    assert named - set(entries()) == set()
