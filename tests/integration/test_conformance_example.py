"""The participant in docs/participant.md keeps the contract, and the suite finds the mistakes one can make in it."""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

_PAGE = (Path(__file__).parents[2] / "docs" / "participant.md").read_text(encoding="utf-8")
_TABLES, _PARTICIPANT, _TESTS = re.findall(r"^```python\n(.*?)^```$", _PAGE, re.M | re.S)

#: Modules that processes of the suite import, too.
_FOLDER = tempfile.TemporaryDirectory()


def _module(name: str, source: str) -> ModuleType:
    (Path(_FOLDER.name) / f"{name}.py").write_text(source, encoding="utf-8")
    importlib.invalidate_caches()
    return importlib.import_module(name)


sys.path.insert(0, _FOLDER.name)
_module("sqlite_participant", _PARTICIPANT)
TestSqlite = _module("sqlite_conformance", _TESTS).TestSqlite


#: What a person may get wrong, as the text that changes, and which test has to say so.
MISTAKES = {
    "rows that are published at once": (
        ('INSERT INTO "{self.participant.table}_staged" VALUES', 'INSERT INTO "{self.participant.table}" VALUES'),
        "test_nothing_is_visible_before_commit",
    ),
    "rows that stay staged": (
        ("                        self.drop(db, handle.name)\n", ""),
        "test_commit_is_idempotent",
    ),
    "no transaction around the commit": (
        ('isolation_level="IMMEDIATE"', "isolation_level=None"),
        "test_a_commit_killed_anywhere_is_completed_once",
    ),
    "a prepare that is not durable": (
        ("with closing(self.participant.connect()) as db, db:", "with closing(self.participant.connect()) as db:"),
        "test_a_task_killed_right_after_pre_commit_has_kept_its_word",
    ),
    "a lost part that is passed over": (
        ("lost.append(handle)", "pass"),
        "test_a_decided_part_that_is_lost_is_named_and_written_again",
    ),
    "a loss that nobody looks for before the decision": (
        ("if not self.holds(db, f", "if False and self.holds(db, f"),
        "test_a_prepared_part_that_is_lost_is_named_before_the_decision",
    ),
    "a committed part that is called lost": (
        ("elif not self.holds(db, self.table, handle.name):", "else:"),
        "test_commit_is_idempotent",
    ),
    "an abort that goes on to what is committed": (
        ("_staged\" WHERE eo_part = ?', (name,))\n\n", "\" WHERE eo_part = ?', (name,))\n\n"),
        "test_no_abort_undoes_a_commit",
    ),
    "a sweep by the beginning of the name": (
        ("if scope.covers(name)", 'if name.startswith(f"eo:{scope.sink_id}") and name not in scope.spare'),
        "test_a_sweep_touches_only_what_its_scope_covers",
    ),
    "a sweep that does not spare what is decided": (
        ("if scope.covers(name)", "if replace(scope, decided=()).covers(name)"),
        "test_a_sweep_touches_only_what_its_scope_covers",
    ),
    "a sweep that takes a neighbour's parts": (
        ("if scope.covers(name)", 'if replace(scope, participant=name.rpartition(":")[2]).covers(name)'),
        "test_two_participants_of_a_sink_may_share_a_place",
    ),
    "a sweep that looks at the claim alone": (
        (
            "if scope.covers(name)",
            "if replace(scope, incarnation=getattr(PartName.parse(name), 'incarnation', '')).covers(name)",
        ),
        "test_what_a_log_left_that_is_gone_is_swept_and_another_clusters_is_not",
    ),
    "a sweep that does nothing": (
        ("if scope.covers(name)", "if False"),
        "test_of_two_attempts_of_a_part_only_the_decided_one_is_visible",
    ),
    "the batch number as the key": (
        ("(str(self.part), *row", "(str(self.part._replace(token=0)), *row"),
        "test_the_same_batch_number_of_a_later_query_is_another_batch",
    ),
    "empty parts with a handle": (
        ("            return None\n", "            self.rows.append((str(self.part), None, None, None, None))\n"),
        "test_an_empty_part_has_no_handle_and_leaves_nothing",
    ),
    "a null that becomes text": (
        ("*row.values())", '*(v or "" for v in row.values()))'),
        "test_every_value_is_kept",
    ),
    "a wrong digest": (
        ("self.digest.add_batch(rows)", "self.digest.add_batch(rows[:1])"),
        "test_the_handle_tells_part_records_and_digest",
    ),
    "a connection that is kept": (
        (
            "self.name, self.path, self.table = name,",
            "self.db, self.name, self.path, self.table = sqlite3.connect(path), name,",
        ),
        "test_the_participant_travels_by_pickle_before_and_after_use",
    ),
}

#: The suite kills processes to find these.
WITH_KILLS = ("no transaction around the commit", "a prepare that is not durable")


@pytest.mark.parametrize(
    "mistake", [pytest.param(m, marks=[pytest.mark.long] if m in WITH_KILLS else []) for m in MISTAKES]
)
def test_the_suite_finds(mistake: str, tmp_path: Path) -> None:
    """A suite that passes what loses rows, or doubles them, is worse than none."""
    (right, wrong), test = MISTAKES[mistake]
    assert _PARTICIPANT.count(right) >= 1
    name = "sqlite_" + re.sub(r"\W", "_", mistake)
    _module(name, "from dataclasses import replace\n" + _PARTICIPANT.replace(right, wrong))
    suite = _module(f"{name}_tests", _TESTS.replace("from sqlite_participant", f"from {name}")).TestSqlite()
    suite.path = str(tmp_path / "orders.db")
    wanted = TypeError if "pickle" in test else AssertionError
    with pytest.raises(wanted):
        getattr(suite, test)()
