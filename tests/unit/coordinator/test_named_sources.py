"""Named sources that come back: where each topic ended that the query no longer reads, and what may read it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exactly_once.checkpoint import batch_in_flight
from exactly_once.coordinator.claim import check_stream
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.decide import amend
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.micro_batch import proposal
from exactly_once.coordinator.named import checked_ends
from exactly_once.coordinator.without_transactions import DeliveryCoordinator
from exactly_once.errors import CheckpointRewound
from exactly_once.options import SinkOptions
from exactly_once.protocol.encoding import decode, encode, headers_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import Decision
from exactly_once.protocol.ticket import empty_part
from tests.unit.ops.test_checkpoint_repair import Site
from tests.unit.ops.test_named_sources import FIRST, SECOND, text, write

ALONE = SECOND[1:]
ENDED = {"refunds": {0: 6}}


def back(name: str = "refunds_2") -> list[str]:
    return [f'{name}:{{"refunds":{{"0":9}}}}', SECOND[1]]


def forgetful(root: Path, last: list[str], batch: int = 200, began: int = 2) -> str:
    """A checkpoint of which Spark has kept the offsets of two batches, without refunds, beside that in flight."""
    location = write(root, FIRST, committed=0)
    site = Site(root)
    for folder in ("offsets", "commits"):
        (root / folder / "0").unlink()
    for n, lines in ((batch - 2, ALONE), (batch - 1, ALONE), (batch, last)):
        site.write(f"offsets/{n}", text(lines))
    site.write(f"commits/{batch - 1}", 'v1\n{"nextBatchWatermarkMs":0}')
    site.write("sources/again/0", f'\0v1\n{{"refunds":{{"0":{began}}}}}')
    return location


def options(location: str, **more: str) -> SinkOptions:
    given = {"sink.id": "job", "checkpointLocation": location, "kafka.bootstrap.servers": "127.0.0.1:1"}
    return SinkOptions.parse({**given, **{name.replace("_", "."): value for name, value in more.items()}})


def decided(batch: Batch, ended: Any, earlier: int = 1) -> Decision:
    return Decision(batch.query_id, batch.batch_id - earlier, 1, (), "digest", 2, 0, ended=ended)


def refused(location: str, last: Decision | None) -> str:
    with pytest.raises(CheckpointRewound) as refusal:
        checked_ends(options(location), batch_in_flight(location), last, lambda: False)
    return str(refusal.value)


@pytest.mark.parametrize("name", ["refunds_2", "again"])
def test_a_topic_that_was_away_for_longer_than_spark_remembers_is_not_read_again(name: str, tmp_path: Path) -> None:
    """Duplicates, in silence: Spark keeps the offsets of a hundred batches, and then begins where the source began."""
    location = forgetful(tmp_path, back(name))
    said = refused(location, decided(batch_in_flight(location), ENDED))
    assert name in said and 'startingOffsets {"refunds": {"0": 6}}' in said
    assert f"exactly-once checkpoint repair {location} --sink job --plan-anew --apply" in said


def test_a_topic_that_returns_under_a_new_name_where_it_ended_is_read_on(tmp_path: Path) -> None:
    """Mishap: a topic that never comes back. From then on it has not ended any more."""
    location = forgetful(tmp_path, back("again"), began=6)
    batch = batch_in_flight(location)
    others = {"other": {0: 3}}
    ends = checked_ends(options(location), batch, decided(batch, {**ENDED, **others}), lambda: False)
    assert ends == others


def test_a_topic_that_the_query_never_read_is_new(tmp_path: Path) -> None:
    """Mishap: a stream of which every further topic is refused, since it is old."""
    location = forgetful(tmp_path, [*ALONE, 'again:{"refunds":{"0":9}}'])
    batch = batch_in_flight(location)
    assert checked_ends(options(location), batch, decided(batch, {}), lambda: False) == {}


@pytest.mark.parametrize("unsaid", ["no decision", "one of an earlier version", "a gap"])
def test_where_no_decision_says_it_a_topic_needs_consent_unless_the_checkpoint_is_whole(
    unsaid: str, tmp_path: Path
) -> None:
    """Duplicates after an upgrade, a weaker guarantee or a lost log, in silence: nobody knows whether it was read."""
    location = forgetful(tmp_path, back())
    batch = batch_in_flight(location)
    last = {
        "no decision": None,
        "one of an earlier version": decided(batch, None),
        "a gap": decided(batch, {}, earlier=3),
    }[unsaid]
    said = refused(location, last)
    assert f"sink.adopt={batch.query_id}/200" in said and "--plan-anew --apply" in said
    assert checked_ends(options(location), batch, last, lambda: True) == {}

    young = write(tmp_path / "young", [FIRST[1]], ALONE, SECOND, committed=1)
    assert checked_ends(options(young), batch_in_flight(young), None, lambda: False) == {}


def test_a_decision_after_one_of_an_earlier_version_says_what_the_checkpoint_knows(tmp_path: Path) -> None:
    """Duplicates a hundred batches later: what Spark still knows today must be in the log before Spark forgets it."""
    location = write(tmp_path / "known", FIRST, SECOND, ALONE, ALONE, committed=2)
    assert checked_ends(options(location), batch_in_flight(location), None, lambda: False) == ENDED
    location = forgetful(tmp_path / "forgotten", ALONE)
    assert checked_ends(options(location), batch_in_flight(location), None, lambda: False) == {"refunds": {}}


@pytest.mark.parametrize(
    ("name", "begins", "repeats"),
    [
        pytest.param("refunds_2", 2, True, id="its own name"),
        pytest.param("again", 0, True, id="another name"),
        pytest.param("again", 6, False, id="another name, and where it stopped"),
    ],
)
def test_a_source_that_was_left_out_for_two_batches_may_not_read_its_topic_again(
    name: str, begins: int, repeats: bool, tmp_path: Path
) -> None:
    """Duplicates, in silence: Spark looks for its offsets in two batches, and else begins at ``sources/<name>/0``."""
    location = write(tmp_path, FIRST, SECOND, ALONE, ALONE, back(name), committed=3)
    Site(tmp_path).write(f"sources/{name}/0", f'\0v1\n{{"refunds":{{"0":{begins}}}}}')
    if repeats:
        assert name in (said := refused(location, None)) and 'up to {"0": 6}' in said
    else:
        assert checked_ends(options(location), batch_in_flight(location), None, lambda: False) == {}


def test_a_source_that_was_left_out_for_one_batch_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Mishap: a stream that is refused though Spark finds the offsets of the source in the batch before the last."""
    location = write(tmp_path, SECOND, ALONE, back(), committed=1)
    batch = batch_in_flight(location)
    assert checked_ends(options(location), batch, decided(batch, ENDED), lambda: False) == {}


def test_each_decision_carries_on_where_a_topic_ended(tmp_path: Path) -> None:
    """Duplicates: the log keeps 64 decisions, so the last one alone must say it, whoever reads and amends it."""
    batches = [FIRST, SECOND, ALONE, ALONE, ALONE]
    last: Decision | None = None
    for n in range(len(batches)):
        location = write(tmp_path / str(n), *batches[: n + 1], committed=n - 1)
        batch = batch_in_flight(location)
        ends = checked_ends(options(location), batch, last, lambda: False)
        state = DriverState(1, batch, 2, 60_000, 0).planned("now", batch, 0, {}, ends)
        made = proposal([empty_part(state.ticket(Plan.WRITE))], state)
        read = decode(encode(made), headers_of(made))
        assert isinstance(read, Decision) and read.ended == ends == ({} if n < 2 else ENDED)
        last = amend(read, replace(read, ended=None), {})
        assert state.ticket(Plan.WRITE).batch.named is None, "no task needs it"


def test_a_start_refuses_the_return_before_another_driver_is_disturbed(tmp_path: Path) -> None:
    """Mishap: a healthy driver is fenced by one that cannot run; and with consent, or a weaker guarantee, it may."""
    location = forgetful(tmp_path, back())
    batch = batch_in_flight(location)
    state = LogState(decisions=(decided(batch, ENDED),))
    with pytest.raises(CheckpointRewound, match="topic refunds again"):
        check_stream(options(location), batch, state, Consent())
    adopting = options(location, sink_adopt=f"{batch.query_id}/200")
    unknown = LogState(decisions=(decided(batch, None),))
    consent = Consent.of(adopting)
    check_stream(adopting, batch, unknown, consent)
    assert consent.say_unneeded("job") == []


def test_a_weaker_guarantee_refuses_what_the_checkpoint_knows(tmp_path: Path) -> None:
    """Duplicates with at_least_once, of a whole topic."""
    location = write(tmp_path, FIRST, SECOND, ALONE, ALONE, back(), committed=3)
    coordinator = DeliveryCoordinator(options(location, sink_guarantee="at_least_once"))
    coordinator._state = DriverState(0, Batch("", 3, ""), 2, 60_000, 0)
    with pytest.raises(CheckpointRewound, match="topic refunds again"):
        coordinator.plan()
