"""The README and ARCHITECTURE.md say what the code does: error texts send people there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exactly_once import errors, options
from exactly_once.protocol import too_long
from exactly_once.protocol.names import SLOTS, VARIANTS, commit_log_topic, namespace, older_slots

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
CODES = {
    c.code: c
    for c in vars(errors).values()
    if isinstance(c, type) and issubclass(c, errors.ExactlyOnceError) and c.code
}
del CODES[errors.ExactlyOnceError.code]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below ``heading`` of the README, without its head."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def test_every_error_code_is_explained_and_no_other() -> None:
    """The person on call greps the README for the code in the alert."""
    explained = [code for row in rows("Errors") for code in re.findall(r"EO-[A-Z-]+", row[0])]
    assert sorted(explained) == sorted(CODES)


@pytest.mark.parametrize("row", rows("Errors"), ids=lambda row: row[0])
def test_the_table_says_of_each_error_whether_a_restart_heals_it_as_the_code_does(row: list[str]) -> None:
    """A supervisor goes by the code, a person by the table; they must do the same."""
    heals = {CODES[code].restart_heals for code in re.findall(r"EO-[A-Z-]+", row[0])}
    assert heals == {row[2] == "yes"}


def test_every_option_of_the_sink_is_explained_and_no_other() -> None:
    """An option in the table that the code refuses, or one that nobody can find."""
    named = re.findall(r"`(sink\.[a-z.]+)`", " ".join(row[0] for row in rows("Options")))
    assert sorted(named) == sorted(options._SINK)


def test_every_kafka_option_of_the_table_is_taken() -> None:
    """The refusal of an unknown option sends people to this table."""
    good = {"sink.id": "s", "checkpointLocation": "/c", "kafka.bootstrap.servers": "h:1"}
    for name in re.findall(r"`(kafka\.[a-z.]+[a-z])`", " ".join(row[0] for row in rows("Options"))):
        value = {"kafka.security.protocol": "PLAINTEXT", "kafka.compression.type": "lz4"}.get(name, "60000")
        options.SinkOptions.parse({**good, name: value})


@pytest.mark.parametrize("heading", ["### Rights", "## Options", "## Errors"])
def test_what_error_texts_refer_to_is_there(heading: str) -> None:
    """ "Grant the rights that the README lists under 'Rights'"."""
    assert f"\n{heading}\n" in README


def test_the_names_to_grant_rights_on_are_the_names_in_use() -> None:
    """A wrong prefix in an ACL looks like "nothing to abort": ids without DESCRIBE are left out silently."""
    rights = README.split("\n### Rights\n")[1].split("\n## ")[0]
    assert f"`{namespace('<sink id>')}`" in rights
    assert f"`{commit_log_topic('<sink id>')}`" in rights


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (SLOTS, "token modulo {}"),
        (SLOTS, "Ids are bounded: {} slots"),
        (VARIANTS, "x parts x {} variants"),
        (round(too_long.SPARE * 100), "with {} % of its timeout to spare"),
    ],
)
def test_a_number_in_the_architecture_is_the_one_in_the_code(number: int, sentence: str) -> None:
    """Somebody computes broker memory, or a timeout, from it."""
    assert sentence.format(number) in ARCHITECTURE


def test_the_number_of_swept_slots_in_the_architecture_is_the_one_in_the_code() -> None:
    """It is written out there."""
    assert len(older_slots(SLOTS, SLOTS)) == 8
    assert "the slots of the eight claims" in " ".join(ARCHITECTURE.split())


def test_every_place_in_the_map_of_the_house_is_there() -> None:
    """The map is for a newcomer, who has nothing to compare it with."""
    house = ARCHITECTURE.split("\n## The house\n")[1].split("\n## ")[0]
    places = [
        p for line in house.splitlines() if line.startswith("| `") for p in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]
    assert len(places) > 8
    assert [p for p in places if not (ROOT / p).exists()] == []
