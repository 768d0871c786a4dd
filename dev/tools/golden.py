"""The golden files below tests/golden: ``make golden`` writes them anew, and tests hold the code to them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from testkit import border_messages, symptoms

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"

#: Each folder's function, which returns the text of its files by name. The folder has no other files.
FOLDERS: dict[str, Callable[[], Mapping[str, str]]] = {
    "border": border_messages.golden_texts,
    "diagnosis": symptoms.golden_texts,
}


def differing(folder: str) -> list[str]:
    """Return the names of the folder's files that are not what the code says."""
    texts, path = FOLDERS[folder](), GOLDEN / folder
    there = {file.name: file.read_text(encoding="utf-8") for file in path.iterdir()} if path.is_dir() else {}
    return sorted(name for name in texts.keys() | there.keys() if texts.get(name) != there.get(name))


def write(folder: str) -> list[str]:
    """Make the folder what the code says; return the names of the files that were not."""
    texts, path, names = FOLDERS[folder](), GOLDEN / folder, differing(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in texts:
            (path / name).write_text(texts[name], encoding="utf-8")
        else:
            (path / name).unlink()
    return names


if __name__ == "__main__":
    for each in sys.argv[1:] or FOLDERS:
        print("\n".join(f"tests/golden/{each}/{name}" for name in write(each)) or f"tests/golden/{each}: as it was")
