"""The README says what the package does, and leads a newcomer on: error texts send people there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from exactly_once.options import SinkOptions

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: The width of a line of prose, as of code.
WIDEST = 120
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / ".github").glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.parent.name}-{page.name}-{n}")
    for page in PAGES
    for n, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S))
]


def anchor(heading: str) -> str:
    """The fragment that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def linked(page: Path) -> set[Path]:
    """The pages to which ``page`` has a link."""
    targets = re.findall(r"\]\(([^)#:]+\.md)[)#]", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets}


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_is_written_as_the_formatter_writes_it(block: str) -> None:
    """Guards against an example that the next run of the formatter tears apart: it formats Markdown, too."""
    command = [sys.executable, "-m", "ruff", "format", "--config", str(ROOT / "pyproject.toml"), "--diff", "-"]
    done = subprocess.run(command, input=block, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_options_of_the_first_example_are_enough_for_a_start() -> None:
    """Guards against a first try that ends with EO-OPTION."""
    example = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)[0]
    SinkOptions.parse(dict(re.findall(r'"([\w.]+)": "([^"]+)"', example)))


def test_the_first_example_gives_the_session_what_the_sink_needs() -> None:
    """Mishap: KAFKA_DATA_SOURCE_NOT_ENABLED, or EO-SESSION-JAR, half a minute after the copy."""
    example = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)[0]
    assert "= exactly_once.configure(SparkSession.builder).getOrCreate()" in example
    assert "\nexactly_once.register(spark)\n" in example


@pytest.mark.parametrize("page", ["reference.md#options", "reference.md#rights", "errors.md"])
def test_what_error_texts_look_for_in_the_readme_is_one_link_away(page: str) -> None:
    """Wedge: "Grant the rights that the README lists under 'Rights'", and no such word there."""
    assert f"(docs/{page})" in README


def test_every_page_is_two_links_away() -> None:
    """Guards against a page that nobody finds."""
    found = {ROOT / "README.md"}
    for _ in range(2):
        found |= {to for page in found for to in linked(page)}
    assert sorted(p.name for p in (ROOT / "docs").rglob("*.md") if p not in found) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    """Guards against a reader at night in front of a page that has moved."""
    for target in re.findall(r"\]\(([^)#:]*(?:#[^)]*)?)\)", page.read_text(encoding="utf-8")):
        path, _, fragment = target.partition("#")
        to = page.parent / path if path else page
        assert to.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.*)$", to.read_text(encoding="utf-8"), re.M)
            assert fragment in {anchor(h) for h in headings}, target


def too_wide(text: str) -> list[int]:
    """The numbers of the lines of prose that are wider than an editor's half of a screen: no table, no block."""
    found, block = [], False
    for number, line in enumerate(text.splitlines(), 1):
        block ^= line.lstrip().startswith("```")
        if not block and len(line) > WIDEST and not line.startswith(("|", "```")):
            found.append(number)
    return found


PROSE = [*PAGES, ROOT / "observability" / "README.md", *(ROOT / "distributions").rglob("*.md")]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_a_line_of_prose_has_at_most_120_characters(page: Path) -> None:
    """Guards against a change of one word that a reviewer sees as half a paragraph."""
    assert too_wide(page.read_text(encoding="utf-8")) == []


def test_a_wide_line_is_found_and_a_wide_row_or_command_is_not() -> None:
    """Guards against a look that finds nothing in anything."""
    wide = "x" * (WIDEST + 1)
    assert too_wide(f"{wide}\n\n| {wide} |\n\n```sh\n{wide}\n```\n{wide}\n") == [1, 8]


def test_the_supported_versions_are_those_of_the_package() -> None:
    """Guards against a promise that pip refuses to install."""
    pythons = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert f"| Python | {pythons[0]} to {pythons[-1]} |" in README
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert "pyspark>=3.5,<4.4" in PROJECT["dependencies"] and "| PySpark 3.5 and 4.0 to 4.3, " in README
    sparks = re.findall(r"^SPARKS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[0].split()
    assert f"{', '.join(sparks[:-1])} and {sparks[-1]} (`make test-sparks`)" in README


@pytest.mark.parametrize("page", ["tutorial.md", "from-spark-sink.md", "one-bad-record.md"])
def test_a_tutorials_feed_counts_what_was_not_delivered(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mishap: "1000 orders written, 0 not sent" of a topic that does not exist: the queue was empty, by errors."""

    class Refusing(MagicMock):
        def produce(self, topic: str, value: str, key: str, on_delivery: Any = None) -> None:
            if on_delivery is not None:
                on_delivery("no such topic", None)

        def flush(self, timeout: float) -> int:
            return 0

    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    [feed] = re.findall(r"^```python file=put\.py\n(.*?)^```$", text, re.M | re.S)
    monkeypatch.setattr("confluent_kafka.Producer", Refusing)
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", MagicMock())
    monkeypatch.setattr(sys, "argv", ["put.py", "1", "3"])
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "h:1")
    exec(compile(feed, "put.py", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert "3 not sent no such topic" in said and "3 orders written" not in said
