"""``make demo``, small: both sinks for real, one kill -9 in the middle of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactly_once.tools.cli import main


@pytest.mark.long
def test_a_small_duel_ends_with_exactly_once_on_our_side(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Guards against a demo that does not run, shows what is not so, or ends without a duplicate of Spark's own
    sink; and against lines of a client's log in its table.
    """
    code = main(["demo", "--rate", "200", "--limit", "20000", "--kills", "1", "--seed", "1", "--out", str(tmp_path)])

    printed, errors = capfd.readouterr()
    assert "|BGQUEUE|" not in errors + printed
    assert code == 0, printed
    table = {
        cells[1].strip(): (cells[2].strip(), cells[3].strip())
        for line in (tmp_path / "duel.md").read_text().splitlines()
        if len(cells := line.split("|")) == 5
    }

    def row(of: str) -> tuple[str, str]:
        [cells] = [cells for title, cells in table.items() if of in title]
        return cells

    assert table[""] == ("Spark's own sink, `kafka`", "This sink, `kafka_exactly_once`")
    assert row("middle of a batch") == ("1", "1") and int(table["killed with kill -9"][0]) >= 1
    assert "middle of a batch (1 of 1)" in printed
    assert table["lost"] == ("0", "0")
    assert int(table["duplicated"][0].replace(",", "")) > 0 and table["duplicated"][1] == "0"
    assert row("left open")[1] == row("held back")[1] == "0"
    assert int(table["flights in"][1].replace(",", "")) == int(table["records out"][1].replace(",", "")) > 0
    assert (tmp_path / "duel.svg").read_text().startswith("<svg")
    assert "This sink: each flight" in printed
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [], "nothing is left behind"
