"""The API reference has every module that users import, and a docstring for every name in it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool() -> ModuleType:
    """The script that writes the reference."""
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "tools" / "api_reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_a_docstring(tool: ModuleType) -> None:
    """Guards against an empty entry: the docstring is the contract."""
    assert tool.undocumented() == []


def test_a_public_name_without_a_docstring_is_found(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a look that finds nothing in anything."""
    lacking = ModuleType("exactly_once_lacking", "A module.")
    source = "class Said:\n    'It says.'\n    def unsaid(self): ...\n\ndef bare(): ...\n\ndef _own(): ...\n"
    exec(source, vars(lacking))
    monkeypatch.setitem(sys.modules, lacking.__name__, lacking)
    found = tool.undocumented((lacking.__name__,))
    assert found == ["exactly_once_lacking.Said.unsaid", "exactly_once_lacking.bare"]


def test_every_module_that_the_documentation_imports_is_in_the_reference(tool: ModuleType) -> None:
    """Guards against an example whose names nobody can look up."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    imported = set(re.findall(r"^ *from ((?:dagster_)?exactly_once[.\w]*) import ", text, re.M))
    assert imported and imported <= set(tool.MODULES)


def test_the_reference_has_a_page_for_each_module(tool: ModuleType, tmp_path: Path) -> None:
    """Guards against a release of the generator that takes other options."""
    tool.write(tmp_path)
    for module in tool.MODULES:
        assert (tmp_path / f"{module.replace('.', '/')}.html").is_file()
    page = (tmp_path / "dagster_exactly_once.html").read_text(encoding="utf-8")
    assert "exactly_once_stream" in page and "Parameters\n" not in page  # numpydoc's headings are rendered
