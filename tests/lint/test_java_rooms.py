"""The rooms of Java lie in the order that ARCHITECTURE.md draws: each imports only from those below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JAVA = ROOT / "java" / "exactlyonce"
SECTION = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("\n## From rows to the brokers\n")[1]
#: From the top: each line's rooms; of the last line classes, since they are in the package of the first line, too.
ORDER = [re.split(r" {2,}", line)[0].split(" | ") for line in SECTION.split("```\n")[1].splitlines()]
LOWEST = set(ORDER[-1])
SOURCES = sorted(path for path in JAVA.rglob("*.java") if path.name != "package-info.java")


def code(source: Path) -> str:
    """The text of a source without comments and strings."""
    text = re.sub(r"/\*.*?\*/", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"//.*", "", re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text))


def place(room: str, name: str) -> int:
    """The line of the order on which a class lies."""
    here = name if room == "exactlyonce" and name in LOWEST else room
    return next(n for n, rooms in enumerate(ORDER) if here in rooms)


def room_of(source: Path) -> str:
    """The last part of the name of a source's package."""
    return source.parent.name


def named(source: Path) -> set[tuple[str, str]]:
    """Room and name of each class of the sink that a source imports, or names in full; of its own package, by name."""
    text = code(source)
    found = set(re.findall(r"\bexactlyonce\.(?:([a-z]\w*)\.)?([A-Z]\w*|\*)", text))
    beside = {path.stem for path in source.parent.glob("*.java")} - {source.stem}
    own = {(room_of(source), name) for name in beside if re.search(rf"(?<![.\w]){name}\b", text)}
    return {(room or "exactlyonce", name) for room, name in found} | own


def test_every_room_is_in_the_order_and_each_source_says_its_room() -> None:
    """Guards against a room that no rule knows."""
    assert {room for rooms in ORDER[:-1] for room in rooms} == {room_of(source) for source in SOURCES}
    assert {path.stem for path in JAVA.glob("*.java")} >= LOWEST and len(ORDER) > 5
    folders = {source: ".".join(source.parent.relative_to(JAVA.parent).parts) for source in SOURCES}
    assert [source for source in SOURCES if f"package {folders[source]};" not in code(source)] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(JAVA)))
def test_a_class_names_only_classes_of_its_room_and_of_those_below(source: Path) -> None:
    """Guards against a circle: whoever reads a room would have to read the one above it first."""
    mine = place(room_of(source), source.stem)
    wrong = {
        (room, name)
        for room, name in named(source)
        if name == "*" or place(room, name) < mine or (place(room, name) == mine and room != room_of(source))
    }
    assert wrong == set()


def test_what_spark_python_and_error_texts_name_keeps_its_name() -> None:
    """Guards against a query of an older package, a plan or an alert that looks for a class where it was."""
    fixed = {"Sink", "MicroBatch", "WholeWrite", "Bridge", "Coordinator", "SinkException"}
    assert fixed <= {path.stem for path in JAVA.glob("*.java")}
