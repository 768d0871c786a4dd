"""Make the site of the repository's own files, a page for each error code, a list of every file, and the API reference.

mkdocs.yml uses it.

A page of the site lies where its file lies in the repository, so that a link between two files works on a git host and
on the site.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import griffe
from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from exactly_once.sparkenv.jars import resolve_configuration  # noqa: E402

#: What the site shows, or a page of it links to.
FILES = (
    "*.md",
    ".github/[A-Z]*.md",
    "docs/*.md",
    "docs/*/*.md",
    "docs/images/*",
    "findings/README.md",
    "observability/*",
    "exactly_once/failpoints.py",
)
ERRORS = "docs/errors.md"
#: The generated list of every file. No search finds it: it repeats what the API reference says of the public ones.
EVERY_FILE = "files.md"

_MERMAID = "assets/mermaid.min.js"
#: The theme colours marks by ids to which this release of Mermaid prefixes that of the diagram: dark on dark.
_ARROWS = """
const initialize = mermaid.initialize;
mermaid.initialize = settings => initialize({...settings, themeCSS: settings.themeCSS + `
  marker[id$=-arrowhead] path { fill: var(--md-mermaid-edge-color) !important }
  marker[id$=-sequencenumber] { fill: var(--md-mermaid-sequence-number-bg-color) !important }`});
"""
#: An example has lines of 120 columns; the name of a file is one word.
_STYLE = {
    "assets/wide.css": ".md-grid { max-width: 76rem; }\n.md-typeset td:first-child code { word-break: normal; }\n"
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have Markdown read as git hosts read it."""
    config.markdown_extensions.insert(0, _ShortIndents())  # before others add to the parser
    config.extra_css.extend(_STYLE)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of ``docs/`` by those of the repository, and add the pages that are made from them."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    for path in sorted(path for pattern in FILES for path in PROJECT.glob(pattern)):
        name = path.relative_to(PROJECT).as_posix()
        files.append(File(name, str(PROJECT), config.site_dir, config.use_directory_urls))
    for code, text in error_pages((PROJECT / ERRORS).read_text(encoding="utf-8")).items():
        name = _page_of(code)
        files.append(File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    files.append(File.generated(config, EVERY_FILE, content=every_file()))
    for module in modules(config.nav):
        files.append(File.generated(config, f"api/{module}.md", content=f"# {module}\n\n::: {module}\n"))
    files.append(File.generated(config, _MERMAID, content=_mermaid()))
    for name, content in _STYLE.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the file or terminal of a tutorial's block; let a search find the page of a code, not its text twice."""
    if page.file.src_uri in (ERRORS, EVERY_FILE):
        page.meta["search"] = {"exclude": True}
    markdown = re.sub(r"^```(\w+) file=(\S+)$", r'```\1 title="\2"', markdown, flags=re.M)
    return re.sub(r"^```(\w+) terminal=(\d)$", r'```\1 title="Terminal \2"', markdown, flags=re.M)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link each code that is not a link to its page, and load what draws the diagrams where there is one."""
    up = "../" * page.url.count("/")

    def linked(code: re.Match[str]) -> str:
        file = files.get_file_from_path(_page_of(code[1]))
        return f'<a href="{up}{file.url}">{code[0]}</a>' if file and file is not page.file else code[0]

    html = re.sub(r'(?<!">)<code>([A-Z]+(?:-[A-Z]+)+)</code>', linked, html)
    if '<pre class="mermaid">' in html:
        html += f'\n<script src="{up}{_MERMAID}"></script>'  # else the theme fetches it from another host
        html += f"<script>{_ARROWS}</script>"
    return html


def error_pages(errors: str) -> dict[str, str]:
    """Return a page for each code, from the entries of ``docs/errors.md``; it lies in the same folder."""
    pages = {}
    for section in re.split(r"^## ", errors, flags=re.M)[1:]:
        heading, _, entries = section.partition("\n")
        for entry in re.split(r"^### ", entries, flags=re.M)[1:]:
            code, _, text = entry.partition("\n")
            pages[code] = f"# {code}\n\n[Errors](errors.md) · {heading}\n\n{text.strip()}\n".replace(
                "](#", "](errors.md#"
            )
    return pages


def _page_of(code: str) -> str:
    return f"docs/{code}.md"


def every_file(project: Path = PROJECT) -> str:
    """Return a page with the files of Python and of Java, folder by folder, each with what it is for."""
    folders = [path for path in project.iterdir() if path.is_dir() and not path.name.startswith((".", "build", "dist"))]
    kept = [path for folder in folders for ext in ("py", "java") for path in folder.rglob(f"*.{ext}")]
    page = ["# Every file", "", "Each file of Python and of Java, by the first sentence of its own docstring."]
    for folder in sorted({path.parent for path in kept}):
        here = {path.name: purpose(path) for path in sorted(kept) if path.parent == folder}
        its = here.pop("__init__.py", "") or here.pop("package-info.java", "")
        page += ["", f"## {folder.relative_to(project).as_posix()}", "", its, ""]
        page += ["| file | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in here.items())] if here else []
    return "\n".join(page) + "\n"


def purpose(source: Path) -> str:
    """Return the first paragraph of the docstring of ``source``; of a Java file, that of its class."""
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".java":
        comment = re.search(r"^/\*\*(.*?)\*/", text, re.M | re.S)
        text = re.sub(r"^ *\* ?", "", comment[1].strip(), flags=re.M) if comment else ""
        text = re.sub(r"\{@\w+ #?([^}]*)\}", r"`\1`", text)
    else:
        text = as_markdown(ast.get_docstring(ast.parse(text)) or "")
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def modules(nav: Any) -> list[str]:
    """Return the modules that users import: those with a page of the navigation below ``api/``."""
    if isinstance(nav, str):
        return re.findall(r"^api/(.*)\.md$", nav)
    return [name for below in (nav.values() if isinstance(nav, dict) else nav) for name in modules(below)]


def undocumented(*names: str, folder: Path = PROJECT) -> list[str]:
    """Return the public modules, classes and functions without a docstring of their own or of a base class.

    What a class keeps in fields its own docstring explains.
    """
    loader = griffe.GriffeLoader(search_paths=[folder])
    for package in {name.partition(".")[0] for name in names}:
        loader.load(package)
    loader.resolve_aliases(external=False)
    return [missing for name in names for missing in _undocumented(loader.modules_collection[name])]


def _undocumented(of: griffe.Object | griffe.Alias, bases: Sequence[griffe.Class] = ()) -> Iterator[str]:
    if not any(
        like.has_docstring for like in (of, *(base.members[of.name] for base in bases if of.name in base.members))
    ):
        yield of.path
    for member in of.members.values():
        if member.is_public and not member.name.startswith("_") and (member.is_class or member.is_function):
            yield from _undocumented(member, of.mro() if isinstance(of, griffe.Class) else ())


def _mermaid() -> bytes:
    """Return the script that draws the diagrams, from a pinned jar that is fetched once into the cache folder."""
    (jar,) = resolve_configuration(PROJECT / "dev" / "tools" / "mermaid.xml", "mermaid")
    with zipfile.ZipFile(jar) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/dist/mermaid.min.js")]
        return archive.read(name)


class _ShortIndents(Extension):
    """Text that is two columns to the right of a list's mark belongs to the list, as on a git host.

    Else it takes four.
    """

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2
        md.build_parser()  # its parts have read the length


class Docstrings(griffe.Extension):
    """Turns what Sphinx reads in a docstring into Markdown: roles, blocks behind ``::``, examples behind ``>>>``."""

    def on_instance(self, *, obj: griffe.Object, **more: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Return a docstring as Markdown."""

    def fenced(block: re.Match[str]) -> str:
        return f":\n\n```text\n{textwrap.dedent(block[1]).strip()}\n```\n\n"

    def example(block: re.Match[str]) -> str:
        code = re.sub(r" *# doctest:.*$", "", re.sub(r"^(?:>>>|\.\.\.) ?", "", block[0], flags=re.M), flags=re.M)
        return f"```python\n{code.rstrip()}\n```\n"

    text = re.sub(r":(?:attr|class|data|exc|func|meth|mod):`~?", "`", docstring)
    text = re.sub(r"::\n\n((?: +.*\n?|\n)+)", fenced, text)
    return re.sub(r"^>>> .*\n?(?:(?:>>>|\.\.\.).*\n?)*", example, text, flags=re.M)
