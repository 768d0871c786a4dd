"""What runs the pages of the documentation would also find a page that lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testkit.pages import PageFailed, blocks, run_page, unkept

ROOT = Path(__file__).parents[3]
#: From the start of one shell to its end; nothing here takes a second.
LIMIT_S = 60.0


def run(tmp_path: Path, page: str, limit_s: float = LIMIT_S) -> Path:
    """Run a page, and return the folder in which it worked."""
    folder, logs = tmp_path / "folder", tmp_path / "logs"
    for made in (folder, logs):
        made.mkdir()
    (tmp_path / "page.md").write_text(page)
    run_page(tmp_path / "page.md", folder, logs, {"PATH": os.environ["PATH"]}, limit_s)
    return folder


def test_a_terminal_keeps_its_variables_and_its_folder_from_block_to_block(tmp_path: Path) -> None:
    page = """
```bash
mkdir here && cd here
export WORD=kept
```
```python file=said.py
print("from a file")
```
```bash
echo $WORD >../found && cat ../said.py  # -> print(...file")
```
"""
    assert (run(tmp_path, page) / "found").read_text() == "kept\n"


def test_a_server_in_another_terminal_is_waited_for_and_gets_ctrl_c_at_the_end(tmp_path: Path) -> None:
    """Guards against brokers that outlive the tests."""
    page = """
```bash terminal=2
trap 'echo ended >ended; exit' INT
sleep 0.5; echo serves  # -> serves
while true; do sleep 0.1; done
```
```bash
test ! -e ended
```
"""
    assert (run(tmp_path, page) / "ended").read_text() == "ended\n"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```bash\necho 3 lost  # -> 0 lost\n```\n", "'0 lost' was promised"),
        ("```bash\nfalse\necho on\n```\n", "this ended with 1"),
        ("```bash\nsleep 60\n```\n", "this took more than 1 s"),
        ("```bash terminal=2\nexit 3  # -> serves\n```\n", "this ended with 3"),
    ],
)
def test_a_page_that_lies_fails(tmp_path: Path, page: str, said: str) -> None:
    """Wedge: a command fails in the middle of a block, and the next one succeeds."""
    with pytest.raises(PageFailed, match=said):
        run(tmp_path, page, limit_s=1.0)


def test_promises_are_kept_in_their_order() -> None:
    assert unkept(["a", "b...d"], "a\nb c d\n") is None
    assert unkept(["b", "a"], "a\nb\n") == "a"
    assert unkept(["b...d"], "b\nd\n") == "b...d"


@pytest.mark.parametrize("page", ["tutorial.md", "from-spark-sink.md"])
def test_the_tutorials_promise_something(page: str) -> None:
    """Guards against a block whose info string is misspelt: it would be left out."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = list(blocks(text))
    assert 2 * len(found) == sum(line.startswith("```") for line in text.splitlines())
    assert sum(len(block.promises) for block in found) == text.count("# ->") - 1, "the first one explains itself"


@pytest.mark.parametrize("page", ["tutorial.md", "from-spark-sink.md"])
def test_a_look_at_a_killed_stream_does_not_end_the_page(page: str) -> None:
    """Guards against a page that stops now and then: the list exits with 1 when the kill has left transactions open."""
    killed = [b.text for b in blocks((ROOT / "docs" / page).read_text(encoding="utf-8")) if "kill -9" in b.text]
    looks = [line for text in killed for line in text.splitlines() if line.startswith("exactly-once transactions list")]
    assert looks and [line for line in looks if "|| true" not in line] == []
