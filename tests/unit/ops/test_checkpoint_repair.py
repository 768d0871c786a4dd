"""What may be done about a torn checkpoint, by the commit log: every way in which files and decisions can stand."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs as pafs
import pytest

from exactly_once.checkpoint import check_state, check_whole, read_checkpoint, same_location
from exactly_once.errors import CheckpointUnusable
from exactly_once.inspection.progress import compare
from exactly_once.protocol.checkpoint_text import digest_of, fault_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import WRITE, Claim, Completed, Decision
from exactly_once.tools.operation.repair.applying import Repair, Work
from exactly_once.tools.operation.repair.files import checksum_of, is_checksum_of, read_files
from exactly_once.tools.operation.repair.verdicts import Action, FileFinding, judge_files

QUERY = "6f1b9a2e-0000-4000-8000-1234567890ab"
HEAD = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": {}})
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
WITH_STATE = 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[[["a"]]]}}'


def offsets(n: int, source: str = '{"in":{"0":%d}}') -> str:
    """``offsets/N`` of batch ``n``."""
    return f"v1\n{HEAD}\n{source % n}"


class Site:
    """A checkpoint of Spark 4.2, and a commit log."""

    def __init__(self, root: Path):
        self.root = root
        self.decisions: dict[int, Decision] = {}
        self.claim: Claim | None = Claim(3, QUERY, 0, "stream", "h", 1, str(root))
        self.write("metadata", json.dumps({"id": QUERY}))

    def write(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def ran(self, planned: int, decided: int | None = None, marked: int | None = None, copies: bool = True) -> Site:
        """Batches 0 to ``planned``, decided and marked up to those numbers; by default all of them."""
        decided = planned if decided is None else decided
        for n in range(planned + 1):
            self.write(f"offsets/{n}", offsets(n))
        for n in range((decided if marked is None else marked) + 1):
            self.write(f"commits/{n}", COMMIT)
        for n in range(decided + 1):
            self.decide(n, offsets(n), copies)
        return self

    def decide(self, n: int, text: str, copy: bool = True) -> None:
        self.decisions[n] = Decision(QUERY, n, 3, (), digest_of(text), 5, 0, offsets=text if copy else "")

    def judge(self, plan_anew: bool = False, write_commit: bool = False, completed: int = -1) -> list[FileFinding]:
        marks = {(QUERY, n): Completed(QUERY, n, 3, 0) for n in range(completed + 1)}
        log = LogState(self.claim, tuple(self.decisions.values()), marks)
        return judge_files(read_files(str(self.root)), log, "s", plan_anew, write_commit)

    def actions(self, plan_anew: bool = False) -> dict[str, str]:
        return {f.name: f.action.value for f in self.judge(plan_anew)}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


TORN = {"empty": "", "zeros": b"\0" * 40, "a version alone": "v1", "cut off": 'v1\n{"next', "not text": b"v1\n\xff"}


# -- what is torn -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metadata", "offsets/3", "commits/3"])
@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_what_a_full_disk_leaves_is_torn(name: str, content: str | bytes) -> None:
    """Spark goes on with a ``commits/N`` of a bare version, and with a watermark of 0."""
    assert fault_of(name, content if isinstance(content, bytes) else content.encode()) is not None


@pytest.mark.parametrize("source", ["", '{"in":{"0":1', '0:{"in":{"0"', "[1,"])
def test_an_input_that_is_cut_off_is_torn(source: str) -> None:
    """Loss: a batch that ends earlier than the one that was decided."""
    assert str(fault_of("offsets/3", f"v1\n{HEAD}\n{source}".encode())).endswith("is cut off")


@pytest.mark.parametrize("source", ['{"in":{"0":1}}', '0:{"in":{"0":1}}', "-", "17", '{"logOffset":3}', "a:b"])
def test_what_spark_writes_is_whole(source: str) -> None:
    """Mishap: a healthy stream that is not started any more."""
    assert fault_of("offsets/3", f"v1\n{HEAD}\n{source}\n".encode()) is None
    assert fault_of("offsets/3", f"v2\n{HEAD}\n0:{source}\n1:-".encode()) is None
    assert fault_of("commits/3", WITH_STATE.encode()) is None and fault_of("metadata", b'{"id":"q"}') is None


def test_a_checksum_is_that_of_hadoop() -> None:
    """Two chunks of 512 bytes and a bit; a torn checksum file says nothing, as for Hadoop."""
    content = bytes(range(256)) * 5
    sums = b"".join(zlib.crc32(content[i : i + 512]).to_bytes(4, "big") for i in (0, 512, 1024))
    head = b"crc\0" + (512).to_bytes(4, "big")
    assert is_checksum_of(head + sums, content) and not is_checksum_of(head + sums, content + b"x")
    assert is_checksum_of(b"", content) and is_checksum_of(b"crc", content)
    assert checksum_of("offsets/3") == "offsets/.3.crc" and checksum_of("metadata") == ".metadata.crc"


def test_observers_name_what_is_torn_and_do_not_fail(site: Site) -> None:
    """Mishap: the tool that is to explain the torn checkpoint dies of it."""
    site.ran(3)
    site.write("offsets/3", "")
    site.write("commits/3", "")
    found = read_checkpoint(str(site.root))
    assert found.torn == {"offsets/3": "it is empty", "commits/3": "it is empty"}
    assert (found.query_id, found.last_offsets, found.last_commit, found.source_offsets) == (QUERY, 3, 2, ())
    progress = compare(found, LogState(site.claim, tuple(site.decisions.values())))
    assert progress.state == "torn" and progress.as_metadata()["torn"] == ["offsets/3", "commits/3"]
    site.write("metadata", "")
    assert read_checkpoint(str(site.root)).query_id is None
    with pytest.raises(CheckpointUnusable, match=r"metadata is torn: .*empty.* checkpoint repair .* --sink 's 1'"):
        check_whole(str(site.root), "s 1")


def test_older_torn_files_stop_nobody(site: Site) -> None:
    """Spark does not read them, so a start must not be refused for their sake."""
    site.ran(4)
    for name in ("offsets/2", "commits/3", "commits/0"):
        site.write(name, "")
    check_whole(str(site.root), "s")


@pytest.mark.parametrize("ahead", ["state/0/1/5.snapshot", "state/0/1/left-keyToNumValues/5.delta", "state/0/7/5.zip"])
def test_a_start_is_refused_whose_state_is_of_a_plan_that_is_gone(site: Site, ahead: str) -> None:
    """Mishap: Spark plans batch 4 anew, with other input, and later goes on with the snapshot of the plan that is gone:
    the rows of the batch are not in the state, so that the query writes them a second time.
    """
    site.ran(3)
    for name in ("state/0/0/4.delta", "state/0/_metadata/metadata", "state/0/1/4.snapshot"):
        site.write(name, "x")
    check_state(str(site.root), "s", QUERY)
    assert site.judge() == []
    site.write(ahead, "x")
    check_state(str(site.root), "s", None)  # of a sink that no query owns yet, which no repair could judge
    with pytest.raises(CheckpointUnusable, match=rf"offsets/4 is gone, but {ahead}"):
        check_state(str(site.root), "s", QUERY)
    [found] = site.judge()
    assert (found.name, found.action, found.also) == ("offsets/4", Action.REMOVE, (ahead,))


def test_the_state_of_a_decided_batch_stays_and_its_offsets_come_back(site: Site) -> None:
    """Mishap: the state that Spark needs next is removed with the plan that a loss of power took."""
    site.ran(3, marked=2)
    site.write("state/0/0/4.delta", "x")
    (site.root / "offsets/3").unlink()
    with pytest.raises(CheckpointUnusable, match="offsets/3 is gone"):
        check_state(str(site.root), "s", QUERY)
    [found] = site.judge()
    assert (found.name, found.action, found.also) == ("offsets/3", Action.REBUILD, ())


@pytest.mark.parametrize(
    "names", [("state/0/0/1.delta", "state/0/_metadata/metadata"), ("state/0/_metadata/metadata",)]
)
@pytest.mark.parametrize("torn", [True, False])
def test_the_first_plan_takes_all_state_with_it(site: Site, names: tuple[str, ...], torn: bool) -> None:
    """Spark begins a query only where there is no state at all, and no folder of it."""
    for name in names:
        site.write(name, "x")
    if torn:
        site.write("offsets/0", "")
    [found] = site.judge()
    assert (found.name, found.action, found.also) == ("offsets/0", Action.REMOVE, names)
    Work(Repair("s", str(site.root), [found]), 3, "me").change(found)
    assert list((site.root / "state").iterdir()) == []


@pytest.mark.parametrize("last", [1, 3])
def test_a_batch_without_offsets_that_may_be_in_the_output_is_not_planned_anew(site: Site, last: int) -> None:
    """Guards against duplicates of a batch that ran under a weaker guarantee, or with another sink: the commit log says
    nothing of it.
    """
    site.ran(3, decided=last, marked=4 if last == 3 else 3)
    site.write("state/0/0/5.delta", "x")
    assert [f.action for f in site.judge() if f.name == "offsets/4"] == [Action.REFUSE]


def test_a_rewound_checkpoint_with_state_is_called_rewound(site: Site) -> None:
    """Mishap: the start names a repair, which refuses, in place of the way out of EO-REWOUND."""
    site.ran(3)
    site.write("state/0/0/7.delta", "x")
    check_state(str(site.root), "s", QUERY)


def test_state_that_commits_name_cannot_be_of_another_plan(site: Site) -> None:
    """In Spark's checkpoint format 2, other files of the state are never read: no start is refused for their sake."""
    site.ran(3)
    site.write("commits/3", WITH_STATE)
    site.write("state/0/0/5_0f1e-2d.zip", "x")
    check_state(str(site.root), "s", QUERY)
    assert site.judge() == []


def test_one_folder_has_many_names(tmp_path: Path) -> None:
    """Spark's own writing of a location in the claim, and a person's."""
    assert same_location(str(tmp_path), f"file:{tmp_path}/") and same_location(f"file://{tmp_path}", str(tmp_path))
    assert not same_location(str(tmp_path), str(tmp_path / "x")) and same_location("nfs://h/c", "nfs://h/c")


# -- nothing to do ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decided", [3, 2])
def test_a_whole_checkpoint_is_left_alone(site: Site, decided: int) -> None:
    """Settled, and with a batch in flight."""
    site.ran(3, decided=decided)
    assert site.judge() == []


# -- commits/N --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_a_torn_commit_of_a_decided_batch_is_removed(site: Site, content: str | bytes) -> None:
    """Spark runs the batch again, with the input that was decided; its rows are drained."""
    site.ran(3)
    site.write("commits/3", content)
    assert site.actions() == {"commits/3": "remove"}


def test_a_commit_whose_checksum_says_otherwise_is_torn(site: Site) -> None:
    """A bit that fell over, or a file from elsewhere: Spark fails on it."""
    site.ran(1)
    site.write("commits/.1.crc", b"crc\0" + (512).to_bytes(4, "big") + b"abcd")
    assert site.actions() == {"commits/1": "remove"}


def test_a_torn_commit_of_a_batch_that_nobody_decided_is_refused(site: Site) -> None:
    """Duplicates: under a weaker guarantee its rows are in the output, and would be written again."""
    site.ran(4, decided=2, marked=4)
    site.write("commits/4", "")
    assert site.actions() == {"commits/4": "refuse"}
    assert "weaker guarantee" in site.judge()[0].why


def test_a_torn_commit_before_a_planned_batch_takes_that_plan_with_it(site: Site) -> None:
    """A stateful batch begins with the state that the commit before it names: it has to run after that one."""
    site.ran(4, decided=3)
    site.write("commits/3", "")
    site.write("state/0/0/5.delta", "of batch 4")
    site.write("state/0/0/4.delta", "of batch 3")
    removed = {f.name: f.also for f in site.judge()}
    assert site.actions() == {"commits/3": "remove", "offsets/4": "remove"}
    assert removed["offsets/4"] == ("state/0/0/5.delta",)


@pytest.mark.parametrize(("whole", "expected"), [(COMMIT, {}), (WITH_STATE, {"offsets/4": "remove"})])
def test_a_commit_that_somebody_deleted_by_guess_takes_the_next_plan_with_it_where_it_named_the_state(
    site: Site, whole: str, expected: dict[str, str]
) -> None:
    """Spark looks for files of the state that are not there (CANNOT_LOAD_STATE_STORE), at each start."""
    site.ran(4, decided=3, marked=2)
    site.write("commits/2", whole)
    assert site.actions() == expected


@pytest.mark.parametrize(("whole", "action"), [(COMMIT, "remove"), (WITH_STATE, "refuse")])
def test_a_torn_commit_before_a_decided_batch_goes_unless_it_alone_names_the_state(
    site: Site, whole: str, action: str
) -> None:
    """Wrong state: batch 4 must run as it was decided, so the commit before it cannot be written again."""
    site.ran(4, marked=3)
    site.write("commits/2", whole)
    site.write("commits/3", "")
    assert site.actions() == {"commits/3": action}


def test_several_torn_commits_go_together(site: Site) -> None:
    """Else the repair has to be asked for once for each."""
    site.ran(4)
    for n in (3, 4):
        site.write(f"commits/{n}", "")
    assert site.actions() == {"commits/3": "remove", "commits/4": "remove"}


def test_an_older_torn_commit_is_named_and_kept(site: Site) -> None:
    site.ran(4)
    site.write("commits/2", "")
    assert site.actions() == {"commits/2": "keep"}


# -- offsets/N --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [3, 2])
@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_torn_offsets_of_a_decided_batch_are_rebuilt_from_its_decision(
    site: Site, content: str | bytes, marked: int
) -> None:
    """With or without ``commits/N``: Spark reads the file in both cases."""
    site.ran(3, marked=marked)
    site.write("offsets/3", content)
    [found] = site.judge()
    assert (found.name, found.action.value, found.content) == ("offsets/3", "rebuild", offsets(3))


def test_the_offsets_before_the_last_batch_are_rebuilt_too(site: Site) -> None:
    """Where the last batch begins: Spark reads both."""
    site.ran(3, decided=2)
    site.write("offsets/2", "")
    assert site.actions() == {"offsets/2": "rebuild"}


def test_a_copy_of_other_input_is_not_put_back(site: Site) -> None:
    """Loss or duplicates: only the digest tells what was decided."""
    site.ran(3)
    site.decisions[3] = Decision(QUERY, 3, 3, (), digest_of(offsets(3)), 5, 0, offsets=offsets(4))
    site.write("offsets/3", "")
    assert site.actions() == {"offsets/3": "refuse"}


def test_offsets_that_no_decision_holds_are_refused_with_what_is_known(site: Site) -> None:
    """A decision of an older version, or input of very many partitions."""
    site.ran(3, copies=False)
    site.write("offsets/3", "")
    [found] = site.judge()
    assert found.action.value == "refuse"
    assert digest_of(offsets(3)) in found.why and "eo.s" in found.why and "backup" in found.why


def test_a_whole_file_beside_a_wrong_checksum_is_written_anew(site: Site) -> None:
    site.ran(3, copies=False)
    site.write("offsets/.3.crc", b"crc\0" + (512).to_bytes(4, "big") + b"abcd")
    [found] = site.judge()
    assert (found.action.value, found.content) == ("rebuild", offsets(3))


def test_torn_offsets_of_an_undecided_batch_are_removed_with_the_state_that_its_tasks_wrote(site: Site) -> None:
    """Wrong state: a snapshot of the first plan's rows would be read as the state after the second plan's."""
    site.ran(3, decided=2)
    site.write("offsets/3", "")
    for name in ("0/0/4.delta", "0/0/4.snapshot", "0/1/4_0f3a-11.zip", "0/1/4.changelog", "0/0/3.delta", "0/0/.4.crc"):
        site.write(f"state/{name}", "x")
    [found] = site.judge()
    assert (found.name, found.action.value) == ("offsets/3", "remove")
    assert found.also == tuple(
        f"state/{n}" for n in ("0/0/4.delta", "0/0/4.snapshot", "0/1/4.changelog", "0/1/4_0f3a-11.zip")
    )


@pytest.mark.parametrize(("decided", "marked"), [(2, 3), (1, 2)])
def test_torn_offsets_that_a_weaker_guarantee_left_are_refused(site: Site, decided: int, marked: int) -> None:
    """Duplicates and losses: nobody knows what of the batch was written."""
    site.ran(3, decided=decided, marked=marked)
    site.write("offsets/3", "")
    assert site.actions() == {"offsets/3": "refuse"}


def test_the_very_first_batch_may_be_planned_anew_and_takes_all_state_with_it(site: Site) -> None:
    """Spark begins a query only where there is no state (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY)."""
    site.ran(0, decided=-1)
    site.write("offsets/0", "")
    state = ("state/0/0/.1.delta.crc", "state/0/0/1.delta", "state/0/_metadata/metadata")
    for name in state:
        site.write(name, "x")
    [found] = site.judge()
    assert (found.name, found.action.value, found.also) == ("offsets/0", "remove", state)


def test_older_torn_offsets_are_rebuilt_when_their_text_is_known_and_kept_otherwise(site: Site) -> None:
    site.ran(6)
    site.decisions[2] = Decision(QUERY, 2, 3, (), digest_of(offsets(2)), 5, 0)
    del site.decisions[1]
    for n in (1, 2, 3):
        site.write(f"offsets/{n}", "")
    assert site.actions() == {"offsets/1": "keep", "offsets/2": "keep", "offsets/3": "rebuild"}


@pytest.mark.parametrize("plan", [None, offsets(9)])
def test_offsets_that_somebody_deleted_by_guess_are_put_back(site: Site, plan: str | None) -> None:
    """Before or after Spark made another plan, which the sink refused with EO-REWOUND: nothing was written."""
    site.ran(3, marked=2)
    (site.root / "offsets" / "3").unlink()
    if plan:
        site.write("offsets/3", plan)
    [found] = site.judge()
    assert (found.name, found.action.value, found.content) == ("offsets/3", "rebuild", offsets(3))


@pytest.mark.parametrize("source", ['{"logOffset":%d}', "%d"])
def test_nothing_is_put_back_behind_a_copy_of_another_time(site: Site, source: str) -> None:
    """Duplicates: a file source counts in a list of its own, which was restored with the rest."""
    for n in range(4):
        site.write(f"offsets/{n}", offsets(n, source))
        site.decide(n, offsets(n, source))
    (site.root / "offsets" / "3").unlink()
    assert site.actions() == {"offsets/3": "refuse"}


@pytest.mark.parametrize("planned", [0, 1])
def test_a_checkpoint_that_was_rewound_is_refused(site: Site, planned: int) -> None:
    """The repair is no way around EO-REWOUND."""
    site.ran(planned)
    for n in range(4):
        site.decide(n, offsets(n))
    [found] = site.judge(plan_anew=True)
    assert found.action.value == "refuse" and "EO-REWOUND" in found.why


# -- a batch that is too long -----------------------------------------------------------------------------------------


def test_a_batch_that_is_not_decided_is_planned_anew_only_when_asked(site: Site) -> None:
    """The way out of EO-TOO-LONG: nothing of it is visible, and a new plan may be smaller."""
    site.ran(3, decided=2)
    site.write("state/0/0/4.snapshot", "x")
    assert site.judge() == []
    [found] = site.judge(plan_anew=True)
    assert (found.name, found.action.value, found.also) == ("offsets/3", "remove", ("state/0/0/4.snapshot",))


@pytest.mark.parametrize("marked", [3, 2])
def test_a_decided_batch_is_never_planned_anew(site: Site, marked: int) -> None:
    """Loss and duplicates: its rows are in the output."""
    site.ran(3, marked=marked)
    [found] = site.judge(plan_anew=True)
    assert found.action.value == "refuse" and "batch 3 is decided" in found.why


# -- metadata, and whose checkpoint it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "{}", b"\0\0", None])
def test_torn_metadata_are_rebuilt_from_the_claim_of_this_very_location(
    site: Site, content: str | bytes | None
) -> None:
    """Without them Spark begins a new query, to which the sink does not belong."""
    site.ran(2)
    if content is None:
        (site.root / "metadata").unlink()
    else:
        site.write("metadata", content)
    [found] = site.judge()
    assert (found.action.value, found.content) == ("rebuild", json.dumps({"id": QUERY}, separators=(",", ":")))
    site.claim = Claim(3, QUERY, 0, "stream", "h", 1, "/elsewhere")
    assert site.actions() == {"metadata": "refuse"}


@pytest.mark.parametrize(
    ("query_id", "says"),
    [("another", "belongs to query another"), (WRITE, "batch writes"), (None, "batch writes"), ("", "never used")],
)
def test_a_log_that_is_not_of_this_checkpoint_allows_nothing(site: Site, query_id: str | None, says: str) -> None:
    """Mishap: the wrong sink id, and a healthy batch in flight planned anew."""
    site.ran(3, decided=2)
    site.write("commits/2", "")
    site.claim = Claim(3, query_id, 0, "stream", "h", 1, str(site.root)) if query_id != "" else None
    [found] = site.judge(plan_anew=True)
    assert found.action.value == "refuse" and says in found.why


def test_a_place_without_a_checkpoint_is_no_whole_one(site: Site) -> None:
    """Mishap: a mistyped location that looks well."""
    (site.root / "metadata").unlink()
    assert site.actions() == {"": "refuse"}


# -- beside them ------------------------------------------------------------------------------------------------------


def test_a_checksum_whose_file_somebody_deleted_is_removed(site: Site) -> None:
    """Spark's default file manager cannot write over it, and speaks of a second query."""
    site.ran(3, marked=2)
    for name in ("commits/.3.crc", "commits/.1.crc", "offsets/.4.crc"):
        site.write(name, b"")
    assert site.actions() == {"commits/.3.crc": "remove", "offsets/.4.crc": "remove"}


def test_leftovers_and_earlier_repairs_are_nothing(site: Site) -> None:
    site.ran(3)
    for name in (
        "offsets/.4.ab.tmp",
        "commits/.4.1.tmp.crc",
        "_repairs/1/offsets/9",
        "state/0/0/.tmp.1",
        "sources/x.log",
    ):
        site.write(name, "")
    assert site.judge() == []


def test_empty_files_of_sources_and_state_are_named_as_not_covered(site: Site) -> None:
    site.ran(1)
    site.write("sources/0/0", "")
    site.write("state/0/0/1.delta", "")
    assert site.actions() == {"sources/0/0": "keep", "state/0/0/1.delta": "keep"}


# -- doing it ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["local", "a store"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, str]:
    """A file system with a checkpoint's root in it: this machine's, or one without atomic renames."""
    if request.param == "local":
        return pafs.LocalFileSystem(), str(tmp_path)
    found = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory"))), f"/{tmp_path.name}"
    monkeypatch.setattr("exactly_once.tools.operation.repair.files.file_system", lambda location: found)
    monkeypatch.setattr("exactly_once.tools.operation.repair.applying.file_system", lambda location: found)
    return found


def test_a_repair_is_done_on_every_file_system(anywhere: tuple[Any, str]) -> None:
    """The checkpoint of a real stream lies on HDFS or in a bucket."""
    fs, root = anywhere

    def put(name: str, text: str) -> None:
        fs.create_dir(f"{root}/{name}".rpartition("/")[0], recursive=True)
        with fs.open_output_stream(f"{root}/{name}") as f:
            f.write(text.encode())

    files = {"metadata": json.dumps({"id": QUERY}), "offsets/0": "", "offsets/.0.crc": "x", "offsets/1": offsets(1)}
    files |= {"state/0/0/2.delta": "x", "commits/0": COMMIT}
    for name, text in files.items():
        put(name, text)
    decision = Decision(QUERY, 0, 3, (), digest_of(offsets(0)), 5, 0, offsets=offsets(0))
    log = LogState(Claim(3, QUERY, 0, "stream", "h", 1, root), (decision,))
    work = Work(Repair("s", root, judge_files(read_files(root), log, "s", plan_anew=True)), 4, "me")
    work.keep()
    for finding in work.findings:
        work.change(finding)
    work.record(done=True)

    assert judge_files(read_files(root), log, "s") == []
    after = read_files(root)
    assert after.offsets[0].text == offsets(0) and 1 not in after.offsets and not after.state
    listed = fs.get_file_info(pafs.FileSelector(root, recursive=True))
    names = {i.path[len(root) :].lstrip("/") for i in listed if i.type == pafs.FileType.File}
    kept = {
        f"{work.folder}/{n}" for n in ("audit.json", "offsets/0", "offsets/.0.crc", "offsets/1", "state/0/0/2.delta")
    }
    assert names == kept | {"metadata", "offsets/0", "commits/0"}


# -- a committed batch whose input is gone -----------------------------------------------------------------------------


def test_the_commit_of_a_committed_batch_is_written_as_spark_wrote_the_one_before(site: Site) -> None:
    """Mishap: a stream that no start brings on, since Spark reads the input of a batch that it will throw away."""
    site.ran(3, marked=2)
    site.write("commits/2", 'v1\n{"nextBatchWatermarkMs":5000}')
    head = json.dumps({"batchWatermarkMs": 7000, "batchTimestampMs": 1})
    site.write("offsets/3", f'v1\n{head}\n{{"in":{{"0":3}}}}')
    [found] = site.judge(write_commit=True, completed=3)
    assert (found.name, found.action) == ("commits/3", Action.REBUILD)
    assert found.content == 'v1\n{"nextBatchWatermarkMs":7000}'
    assert site.judge(completed=3) == []


def test_the_commit_of_a_first_batch_is_written_too(site: Site) -> None:
    """It has no commit before it."""
    [found] = site.ran(0, marked=-1).judge(write_commit=True, completed=0)
    assert found.content == COMMIT


def test_a_batch_that_is_not_proven_committed_gets_no_commit(site: Site) -> None:
    """A loss: Spark would go on behind rows that are in no output."""
    site.ran(3, decided=3, marked=2)
    [open_decision] = site.judge(write_commit=True, completed=2)
    site.decisions.pop(3)
    [undecided] = site.judge(write_commit=True, completed=2)
    for found in (open_decision, undecided):
        assert (found.name, found.action) == ("commits/3", Action.REFUSE) and "exactly-once recover s" in found.why


def test_a_batch_that_spark_has_committed_stays_as_it_is(site: Site) -> None:
    """The command may be run twice."""
    [found] = site.ran(3).judge(write_commit=True, completed=3)
    assert (found.name, found.changes, found.action) == ("commits/3", False, Action.KEEP)


@pytest.mark.parametrize(
    ("state", "commit", "action"),
    [
        pytest.param(
            ["0/0/3.delta", "0/0/4.delta", "0/1/4.delta"], COMMIT, Action.REBUILD, id="all of the batch's state"
        ),
        pytest.param(
            ["0/0/3.delta", "0/0/4.delta", "0/1/3.delta"], COMMIT, Action.REFUSE, id="state that lacks a part"
        ),
        pytest.param(["0/0/3.delta"], COMMIT, Action.REFUSE, id="state of the batch before"),
        pytest.param(["0/0/4_a-b.zip"], WITH_STATE, Action.REFUSE, id="state that the commit names"),
    ],
)
def test_the_commit_of_a_query_with_state_is_written_where_its_state_is_there(
    state: list[str], commit: str, action: Action, site: Site
) -> None:
    """Wrong results: batch 4 would begin with state that lacks the rows of batch 3."""
    site.ran(3, marked=2)
    site.write("commits/2", commit)
    for name in state:
        site.write(f"state/{name}", "x")
    [found] = site.judge(write_commit=True, completed=3)
    assert (found.name, found.action) == ("commits/3", action)


def test_a_torn_checkpoint_is_repaired_before_a_commit_is_written(site: Site) -> None:
    """What is torn may be the plan of that very batch."""
    site.ran(3, marked=2)
    site.write("offsets/3", "")
    assert {f.name: f.action for f in site.judge(write_commit=True, completed=3)} == {"offsets/3": Action.REBUILD}
