"""The pictures in the documentation show the names that people meet today."""

import re

import pytest

from tests.ui.pictures import FOLDER, PICTURES, digest, read

DOCS = FOLDER.parent
ANEW = "take the pictures anew: EXACTLY_ONCE_SCREENSHOTS=docs/images make test-long PYTEST_ARGS=tests/ui"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_what_the_pages_show_today(name):
    """A person looks for a button, a name or a code of the picture, and does not find it."""
    listed = read(FOLDER).get(name, {})
    assert listed.get("shows") == list(PICTURES[name]), ANEW
    assert listed["sha256"] == digest(FOLDER, name), f"{name}.png was changed by hand; {ANEW}"


def test_the_pictures_are_from_the_dagster_that_is_installed():
    """Its pages change from release to release."""
    pins = (DOCS.parent / "distributions" / "constraints.txt").read_text()
    pinned = re.search(r"^dagster==(\d+\.\d+)", pins, re.MULTILINE)
    assert pinned is not None
    assert {str(p["dagster"]).rpartition(".")[0] for p in read(FOLDER).values()} == {pinned[1]}, ANEW


def test_each_picture_is_in_the_documentation_and_each_of_the_documentation_is_taken_by_a_test():
    """A picture that nobody takes stays as it was when it was made."""
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    shown = {m for page in pages for m in re.findall(r"images/([\w-]+)\.png", page.read_text())}
    assert shown == set(PICTURES) == {p.stem for p in FOLDER.glob("*.png")}
