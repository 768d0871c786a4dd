"""``make demo``, small: both sinks for real, one kill -9."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactly_once.ops.cli import main


@pytest.mark.long
def test_a_small_duel_ends_with_exactly_once_on_our_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against a demo that does not run, and against one that would show what is not so."""
    code = main(["demo", "--rate", "200", "--limit", "20000", "--kills", "1", "--seed", "1", "--out", str(tmp_path)])

    printed = capsys.readouterr().out
    assert code == 0, printed
    table = {
        cells[1].strip(): (cells[2].strip(), cells[3].strip())
        for line in (tmp_path / "duel.md").read_text().splitlines()
        if len(cells := line.split("|")) == 5
    }
    assert table[""] == ("Spark's own sink, `kafka`", "This sink, `kafka_exactly_once`")
    assert table["killed with kill -9"] == ("1", "1")
    assert table["lost"] == ("0", "0")
    assert table["duplicated"][1] == "0", "Spark's is as it came out"
    assert table["transactions left open"][1] == table["offsets held back from readers"][1] == "0"
    assert int(table["flights in"][1].replace(",", "")) == int(table["records out"][1].replace(",", "")) > 0
    assert (tmp_path / "duel.svg").read_text().startswith("<svg")
    assert "This sink: each flight is there exactly once." in printed
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [], "nothing is left behind"
