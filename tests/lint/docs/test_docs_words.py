"""The README is read at one sitting and the users' documentation in a day; longer pages are not read at all."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]

#: Six minutes.
README_WORDS = 1_200
#: The bound of issue 44: at 200 a minute, some four hours of reading and a day of trying. It counts the tables of what
#: brokers and engines really do, which are looked up.
USERS_WORDS = 45_000
#: Pages of ``docs/`` for those who change this project; ``docs/lab/`` is their journal.
OF_DEVELOPERS = {"benchmark.md", "dagster.md", "promises.md"}


def words(text: str) -> int:
    """Count what white space separates and what has a letter or a digit: no bars of a table, no marks of a list."""
    return sum(any(c.isalnum() for c in word) for word in text.split())


def prose(text: str) -> str:
    """Return a page without its blocks of code and its comments."""
    return re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.M | re.S)


def test_the_readme_has_about_1200_words() -> None:
    """Mishap: nobody reads as far as read_committed. Code does not count, nor do the names of promises."""
    assert words(prose((ROOT / "README.md").read_text(encoding="utf-8"))) <= README_WORDS


def test_the_users_documentation_has_at_most_45000_words() -> None:
    """Mishap: a page grows by every answer, and nobody finds the one for tonight. Code counts: it is read, too."""
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in OF_DEVELOPERS]
    pages += [ROOT / "SECURITY.md", ROOT / "observability" / "README.md"]  # the README has a limit of its own
    counted = {str(page.relative_to(ROOT)): words(page.read_text(encoding="utf-8")) for page in pages}
    assert sum(counted.values()) <= USERS_WORDS, sorted(counted.items(), key=lambda found: -found[1])


def test_marks_code_and_comments_are_not_counted_as_prose() -> None:
    """Guards against a count that a table or an example decides."""
    page = "| 3 | four |\n\n- one\n\n```sh\nmake all\n```\n\nfive <!-- promise: x -->\n"
    assert (words(page), words(prose(page))) == (9, 4)
