"""The site of ``make docs`` has every page, each error code and the API reference; a broken link ends its build."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt
from mkdocs.config import load_config

from testkit.syntax import loaded

#: make check runs them.
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "dev" / "tools" / "mkdocs.yml"
NAV = load_config(str(CONFIG)).nav
#: As a git host reads Markdown.
HOST = MarkdownIt("commonmark", {"html": True}).enable("table")
#: What one reader takes for a list or a block, and another for text.
SHAPES = ("blockquote", "h1", "h2", "h3", "img", "li", "ol", "pre", "strong", "td", "ul")


def paths(nav: object) -> list[str]:
    """The pages of the navigation."""
    if isinstance(nav, str):
        return [nav]
    return [path for below in (nav.values() if isinstance(nav, dict) else nav) for path in paths(below)]


def build(config: Path, target: Path) -> subprocess.CompletedProcess[str]:
    # not --quiet: with it, mkdocs does not count its warnings
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(config), "-d", str(target)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def article(page: Path) -> str:
    return re.findall(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.S)[0]


def shapes(html: str) -> dict[str, int]:
    return {tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in SHAPES}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(CONFIG, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """What mkdocs.yml makes the site of."""
    return loaded(ROOT / "dev" / "tools" / "site_hooks.py")


def test_every_page_for_users_is_in_the_navigation_and_the_journal_is_not() -> None:
    """Guards against a page that only a search finds, and against a menu full of experiments."""
    paths_of_pages = [path for places in ("*.md", ".github/[A-Z]*.md", "docs/**/*.md") for path in ROOT.glob(places)]
    pages = {path.relative_to(ROOT).as_posix() for path in paths_of_pages}
    journal = {page for page in pages if page.startswith("docs/lab/")}
    assert pages - journal <= set(paths(NAV)) and not journal & set(paths(NAV))
    texts = "".join((ROOT / page).read_text(encoding="utf-8") for page in pages - journal)
    assert [page for page in journal if page.removeprefix("docs/") not in texts] == []


def test_the_navigation_has_the_groups_of_the_readme() -> None:
    """Guards against a reader who looks on the site for what the README told them to read, under another heading."""
    groups = re.findall(r"^\| (To \w+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert [name for entry in NAV for name in entry] == ["Overview", *groups]


@pytest.mark.parametrize(
    ("page", "nav", "said"),
    [
        ("[there](other.md#here)", ["index.md", "other.md"], ""),
        ("[there](gone.md)", ["index.md", "other.md"], "'gone.md'"),
        ("[there](other.md#gone)", ["index.md", "other.md"], "anchor"),
        ("[there](#gone)", ["index.md", "other.md"], "anchor"),
        ("", ["index.md"], 'not included in the "nav"'),
        ("", ["index.md", "other.md", "gone.md"], "'gone.md'"),
    ],
)
def test_a_link_an_anchor_or_a_place_that_is_not_there_ends_the_build(
    page: str, nav: list[str], said: str, tmp_path: Path
) -> None:
    """Guards against a setting under which a broken link is a line that nobody reads."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "index.md").write_text(f"# Index\n\n{page}\n")
    (folder / "other.md").write_text("# Other\n\n## Here\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {CONFIG}\ndocs_dir: docs\nhooks: []\nplugins: []\nwatch: []\nnav: {nav}\n")
    done = build(config, tmp_path / "site")
    assert (done.returncode == 0) == (said == "") and said in done.stderr, done.stderr


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    """Guards against a site that a closed network shows without its letters and diagrams."""
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|img|link|iframe)[^>]* (?:src|href)=\"?(?:https?:)?//[^>]*", html) == [], page
    assert '<script src="assets/mermaid.min.js">' in (site / "ARCHITECTURE.html").read_text(encoding="utf-8")
    assert (site / "assets" / "mermaid.min.js").stat().st_size > 1_000_000


@pytest.mark.parametrize("path", [path for path in paths(NAV) if (ROOT / path).is_file()])
def test_a_page_has_the_same_lists_tables_and_blocks_on_a_git_host_and_on_the_site(path: str, site: Path) -> None:
    """Mishap: the tutorial's programs ran together into one paragraph, since the site's reader knows no ``file=``."""
    page = ROOT / path
    built = site / (path.replace("README", "index").removesuffix(".md") + ".html")
    assert shapes(article(built)) == shapes(HOST.render(page.read_text(encoding="utf-8")))


def test_each_error_code_has_a_page_and_other_pages_link_to_it(site: Path) -> None:
    """The person on call searches for the code, and wants its entry and nothing else."""
    codes = re.findall(r"^### (.*)$", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.M)
    assert len(codes) > 60 and [code for code in codes if not (site / "docs" / f"{code}.html").is_file()] == []
    entry = article(site / "docs" / "EO-LOST.html")
    assert "Restart: " in entry and "<strong>Safe?</strong>" in entry and "EO-FENCED" not in entry
    assert '<a href="docs/EO-FENCED.html"><code>EO-FENCED</code></a>' in article(site / "index.html")
    assert '<a href="../docs/EO-OPTION.html"><code>EO-OPTION</code></a>' in article(site / "docs" / "reference.html")


def test_a_search_finds_an_entry_once(site: Path) -> None:
    """Guards against each entry twice in each list of results."""
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert '"location":"docs/EO-FENCED.html' in index and '"location":"docs/errors.html' not in index


def test_every_file_is_listed_with_what_it_is_for(hooks: ModuleType, site: Path) -> None:
    """Guards against a newcomer who guesses by a name: no page of the repository lists the files."""
    rows = dict(re.findall(r"^\| `(\w+\.\w+)` \| (.*) \|$", hooks.every_file(), re.M))
    assert [name for name, text in rows.items() if not text] == []
    assert {"decide.py", "PartWriter.java", Path(__file__).name} <= set(rows)
    assert "decide.py" in article(site / "files.html")
    assert '"location":"files.html' not in (site / "search" / "search_index.json").read_text(encoding="utf-8")


def test_the_api_reference_has_every_module_that_the_documentation_imports(hooks: ModuleType) -> None:
    """Guards against an example whose names nobody can look up."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    imported = set(re.findall(r"^ *from ((?:dagster_)?exactly_once[.\w]*) import ", text, re.M))
    assert imported and imported <= set(hooks.modules(NAV))


def test_every_public_name_has_a_docstring(hooks: ModuleType) -> None:
    """Guards against a name that the reference leaves out: the docstring is the contract."""
    assert hooks.undocumented(*hooks.modules(NAV)) == []


def test_a_public_name_without_a_docstring_is_found(hooks: ModuleType, tmp_path: Path) -> None:
    """Guards against a look that finds nothing in anything."""
    source = '"""A module."""\n\nclass Base:\n    """It is said here."""\n    def said(self):\n        """It says."""\n'
    source += "class Said(Base):\n    'It says.'\n    def said(self): ...\n    def unsaid(self): ...\n"
    (tmp_path / "lacking.py").write_text(f"{source}def bare(): ...\ndef _own(): ...\n")
    assert hooks.undocumented("lacking", folder=tmp_path) == ["lacking.Said.unsaid", "lacking.bare"]


def test_a_docstring_is_shown_as_it_is_meant(hooks: ModuleType, site: Path) -> None:
    """Mishap: examples behind ``>>>`` became quotations of quotations."""
    text = "See :func:`~a.b`::\n\n    as is\n      more\n\n>>> f(1)  # doctest: +SKIP\n... \n\nEnd.\n"
    assert hooks.as_markdown(text) == "See `a.b`:\n\n```text\nas is\n  more\n```\n\n```python\nf(1)\n```\n\nEnd.\n"
    page = article(site / "api" / "dagster_exactly_once.html")
    assert "exactly_once_stream" in page and "Parameters:" in page
    for page in (site / "api").glob("*.html"):
        assert not re.search(r":(?:class|func|meth|mod):|&gt;&gt;&gt;|<blockquote>|::</p>", article(page)), page
