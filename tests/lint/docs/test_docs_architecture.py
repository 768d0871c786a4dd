"""ARCHITECTURE.md says what the code does: packages, paths and numbers."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from dagster_exactly_once.runs import tags
from exactly_once.protocol import too_long
from exactly_once.protocol.names import SLOTS, VARIANTS, older_slots

ROOT = Path(__file__).parents[3]
ENGINE = ROOT / "exactly_once"
HALF = ROOT / "dagster_exactly_once"
JAVA = ROOT / "java" / "exactlyonce"
TAGS = {name: tag for name, tag in vars(tags).items() if name.startswith("TAG_")}
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
TEXT = " ".join(ARCHITECTURE.split())
DAGSTER_PAGE = (ROOT / "docs" / "dagster.md").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
HOUSES, DEVELOPMENT, DAGSTER, ROOMS, TOOLS, VERIFIER = [c["layers"] for c in CONTRACTS if c["type"] == "layers"]

#: Wider lines of a table or a block have to be scrolled on a phone.
WIDEST = 120


def section(heading: str) -> str:
    """The text below a heading of the second level."""
    return ARCHITECTURE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def stays() -> list[tuple[str, list[str]]]:
    """Each stay of "Follow one commit": its file, and the functions in bold."""
    items = re.findall(r"^\d+\. (.*(?:\n +.*)*)", section("Follow one commit"), re.M)
    return [(re.findall(r"`([^`]+\.(?:py|java))`", item)[0], re.findall(r"\*\*`([^`]+)`\*\*", item)) for item in items]


def defined(path: Path) -> set[str]:
    """Functions, classes and methods of a module, as ``Class.method``; of a class in Java, its methods."""
    if path.suffix == ".java":
        source = JAVA / path.relative_to(ENGINE)
        return set(re.findall(r"\b(\w+)\(", source.read_text(encoding="utf-8")))
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return found


def test_every_file_of_java_that_is_named_is_there() -> None:
    """Guards against a walk through rooms from which a class has moved."""
    named = set(re.findall(r"`([\w/]+\.java)`", ARCHITECTURE))
    assert len(named) > 15 and [name for name in named if not (JAVA / name).is_file()] == []


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (SLOTS, "token modulo {}"),
        (SLOTS, "Ids are bounded: {} slots"),
        (VARIANTS, "x parts x {} variants"),
        (round(too_long.SPARE * 100), "with {} % of its timeout to spare"),
        (round((1 - too_long.SPARE) * 100), "gives up at {} % of the transaction timeout"),
    ],
)
def test_a_number_in_the_architecture_is_the_one_in_the_code(number: int, sentence: str) -> None:
    """Somebody computes broker memory, or a timeout, from it."""
    assert sentence.format(number) in TEXT


def test_the_number_of_swept_slots_in_the_architecture_is_the_one_in_the_code() -> None:
    """It is written out there."""
    assert len(older_slots(SLOTS, SLOTS)) == 8
    assert "the slots of the eight claims" in TEXT


def test_every_place_in_the_map_of_the_house_is_there() -> None:
    """The map is for a newcomer, who has nothing to compare it with."""
    places = re.findall(r"^- `([a-z_]+/)`:", section("Packages"), re.M)
    assert len(places) > 5 and all((ROOT / place).is_dir() for place in places)


def test_the_layers_are_those_that_the_import_contracts_hold() -> None:
    """Guards against a map of yesterday's packages."""
    for houses in (HOUSES, DEVELOPMENT):
        assert " <- ".join(f"`{house}`" for house in reversed(houses)).replace(" | ", "`, `") in TEXT
    blocks = [*section("Packages").split("```\n")[1::2], DAGSTER_PAGE.split("```\n")[1]]
    named = [[re.split(r" {2,}", line)[0] for line in block.splitlines()] for block in blocks]
    assert named == [ROOMS, TOOLS, VERIFIER, DAGSTER]


def test_every_answer_to_where_names_a_function_of_that_file() -> None:
    """Guards against an answer that sends people to an empty room."""
    answers = re.findall(r"^- \.\.\. .*\? `([a-z_/]+\.py)`, `([A-Za-z_.]+)`\.$", section("Packages"), re.M)
    assert len(answers) == section("Packages").count("\n- ... ")
    assert [answer for answer in answers if answer[1] not in defined(ENGINE / answer[0])] == []


def test_the_way_of_a_commit_is_that_of_the_code_and_short() -> None:
    """Guards against a walk through functions that are gone, or one that turns back again and again."""
    way = stays()
    assert [(file, f) for file, functions in way for f in functions if f not in defined(ENGINE / file)] == []
    assert all(functions for _, functions in way)
    assert max(Counter(file for file, _ in way).values()) <= 2
    named = set(re.findall(r"`([^`]+\.(?:py|java))`", section("Follow one commit")))
    assert {file for file, _ in way} <= named and len(named) <= 12


def test_every_file_of_the_dagster_half_that_is_named_is_there() -> None:
    """Guards against a walk through files that have moved."""
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", DAGSTER_PAGE + section("The Dagster half"))
    missing = [f for f in named if not (HALF / f).is_file() and not (ROOT / f).is_file()]
    assert len(named) > 10 and missing == []


def users_of_tags() -> dict[str, set[str]]:
    """By tag, the modules that set or read it, such as ``runs/history``."""
    found = dict[str, set[str]]()
    for path in HALF.rglob("*.py"):
        module = path.relative_to(HALF).with_suffix("").as_posix()
        names = {n.id for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Name)}
        for name in names & set(TAGS) if module != "runs/tags" else ():
            found.setdefault(TAGS[name], set()).add(module)
    return found


def test_the_table_of_tags_names_each_tag_and_just_the_modules_that_use_it() -> None:
    """Guards against a state machine in strings whose setters and readers nobody can list."""
    rows = [line.split("|")[1:-1] for line in DAGSTER_PAGE.split("## Tags on runs")[1].splitlines() if "| `" in line]
    named = {row[0].strip(" `"): set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*)`", f"{row[2]} {row[3]}")) for row in rows}
    assert named == users_of_tags()


def test_no_table_or_block_is_wider_than_a_phone_can_show() -> None:
    """Guards against a cell of half a page."""
    wide = [x for x in ARCHITECTURE.splitlines() if x.startswith("|") and len(x) > WIDEST]
    assert wide == []
