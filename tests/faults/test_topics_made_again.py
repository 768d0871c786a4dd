"""An output topic is deleted and made again behind a decision: EndTxn's "done" does not speak of the new topic."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from exactly_once.coordinator.recover import recover
from exactly_once.kafka.admin import Admin
from exactly_once.tools.cli import main
from exactly_once.tools.verify import VerifyParameters, verify
from testkit import broker as brokers
from testkit import oracle
from testkit.fixtures import Bench, StartDriver
from testkit.stream import Ended, Run, SparkDriver


def made_again(bench: Bench, topic: str = "", partitions: int = 4) -> None:
    """Delete a topic, by default the output, and make it again."""
    name, servers = topic or bench.topic, bench.connection.bootstrap_servers
    brokers.delete_topic(servers, name)
    brokers.create_topic(servers, name, partitions=partitions)


def stopped_at(bench: Bench, driver: SparkDriver, point: str, action: str = "hang") -> Run:
    """Complete batch 0, and bring batch 1 to ``point``."""
    bench.complete(driver)
    driver.arm(point, action)
    bench.input.add()
    run = driver.start(bench.job)
    run.await_true(point, lambda: driver.has_reached(point))
    return run


def refused(bench: Bench, driver: SparkDriver) -> Ended:
    """Start the stream, which refuses the new topic, and says what becomes of the decided batch."""
    ended = driver.run(bench.job).with_code("EO-TOPIC-RECREATED")
    assert "nothing of batch 1, which is decided and not completed, is in the new topic" in ended.sentence
    return ended


def dry_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], dict[str, int]]:
    """Return the batches that a recovery would complete, and by batch the number of lost parts."""
    capsys.readouterr()
    main(["recover", bench.sink_id, "--dry-run", "--json", "--bootstrap-servers", bench.connection.bootstrap_servers])
    document = json.loads(capsys.readouterr().out)
    return document["would_complete"], document["lost_parts"]


def assert_written_once_adopted(bench: Bench, driver: SparkDriver) -> None:
    """One start with the word of the refusal writes batch 1 into the new topic, and the stream goes on there."""
    driver.complete(bench.job.having(**refused(bench, driver).consent("sink.adopt")))
    bench.complete(driver)
    bench.assert_exactly(bench.input.expected(slice(1, None)))
    assert bench.decided_batches() == [0, 1, 2] and not bench.log().open_decisions
    report = verify(bench.connection, VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), settle_s=3))
    assert not report.findings, report.findings


@pytest.mark.long
def test_a_decided_batch_goes_into_the_topic_that_was_made_again_behind_its_decision(
    bench: Bench, warm: SparkDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against a silent loss while the driver lives: the coordinator says "done" for a topic that is gone."""
    run = stopped_at(bench, warm, "decided", "wait")
    made_again(bench)
    warm.release("decided")

    run.end().with_code("EO-LOST")
    assert dry_run(bench, capsys) == ([], {"batch 1": 4})
    assert_written_once_adopted(bench, warm)


@pytest.mark.long
@pytest.mark.parametrize("point", ["decided", "some-ended", "all-ended"])
def test_a_decided_batch_of_a_killed_driver_goes_into_the_topic_that_was_made_again(
    point: str, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a silent loss, whatever was committed to the old topic: all of it is gone."""
    first = driver()
    stopped_at(bench, first, point)
    first.kill9()
    made_again(bench)

    assert_written_once_adopted(bench, warm)


@pytest.mark.long
@pytest.mark.parametrize("back", [True, False], ids=["made again before", "made again after"])
def test_a_recovery_of_a_batch_whose_topic_was_deleted_leaves_it_to_the_next_start_and_says_so(
    back: bool, bench: Bench, driver: StartDriver, warm: SparkDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards against a recovery that commits into nothing, and calls the batch complete; and against a dry run that
    announces it.
    """
    first = driver()
    stopped_at(bench, first, "decided")
    first.kill9()
    brokers.delete_topic(bench.connection.bootstrap_servers, bench.topic)
    if back:
        brokers.create_topic(bench.connection.bootstrap_servers, bench.topic, partitions=4)
    assert dry_run(bench, capsys) == ([], {"batch 1": 4})
    for _ in range(2):
        report = recover(bench.connection, bench.sink_id)
        assert [d.batch_id for d in report.to_rewrite] == [1] and report.completed == []
    if not back:
        brokers.create_topic(bench.connection.bootstrap_servers, bench.topic, partitions=4)

    assert_written_once_adopted(bench, warm)


def two_outputs(bench: Bench) -> tuple[Bench, str]:
    """The bench with rows that name their topics, half of them a second one."""
    second = brokers.create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-2", partitions=4)
    named = f"if(cast(substring_index(value, '-', -1) as int) % 2 = 0, '{bench.topic}', '{second}') topic"
    job = bench.job.having(topic=None)
    return replace(bench, job=replace(job, select=[*job.select, named])), second


@pytest.mark.long
@pytest.mark.parametrize("recovered", [False, True], ids=["", "recovered first"])
def test_all_of_a_decided_batch_is_written_again_when_one_of_its_topics_was_made_again(
    recovered: bool, bench: Bench, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a batch of which one topic has all and the other nothing, and against rows that are doubled in the
    topic that stayed.
    """
    bench, second = two_outputs(bench)
    first = driver()
    stopped_at(bench, first, "decided")
    first.kill9()
    made_again(bench, second)
    if recovered:
        assert [d.batch_id for d in recover(bench.connection, bench.sink_id).to_rewrite] == [1]

    warm.complete(bench.job.having(**refused(bench, warm).consent("sink.adopt")))

    for topic, odd, batches in ((bench.topic, 0, slice(None)), (second, 1, slice(1, None))):
        rows = [(k, v) for k, v in bench.input.expected(batches) if int(v.rsplit("-", 1)[1]) % 2 == odd]
        oracle.assert_exactly(oracle.read(bench.connection, [topic]), rows)
    assert not bench.log().open_decisions


@pytest.mark.long
@pytest.mark.parametrize("point", ["some-ended", "all-ended"])
def test_a_batch_that_was_committed_to_one_topic_and_is_gone_from_another_stops_for_a_person(
    bench: Bench, driver: StartDriver, warm: SparkDriver, point: str
) -> None:
    """Guards against the rows of the topic that stayed, twice, and against the loss of the others without a word: the
    parts that were not committed yet are rolled back, and a person who accepts the loss has to read of them.
    """
    bench, second = two_outputs(bench)
    first = driver()
    stopped_at(bench, first, point)
    parts = len(bench.log().open_decisions[0].handles)
    first.kill9()
    made_again(bench, second)
    adopting = bench.job.having(**refused(bench, warm).consent("sink.adopt"))

    ended = warm.run(adopting).with_code("EO-EXPIRED")
    assert all(fact in ended.sentence for fact in (second, f"{parts} of its parts ", "in doubt"))
    warm.complete(adopting.having(**ended.consent("sink.accept.lost")))
    assert len(bench.visible()) == len({v for _, v in bench.visible()})
    with Admin(bench.connection) as admin:
        assert not oracle.held_back(admin, [bench.topic, second])


@pytest.mark.long
def test_a_decided_batch_write_goes_into_the_topic_that_was_made_again(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a write that is done by its id, and whose rows are nowhere."""
    kept = {k: v for k, v in bench.job.options.items() if k != "checkpointLocation"}
    options = {**kept, "write.id": "day-1"}
    warm.arm("decided", "raise")
    assert warm.write_batch(options, 40).failure is not None
    made_again(bench)

    again = warm.write_batch(options, 40)
    assert again.code == "EO-TOPIC-RECREATED" and "write 'day-1'" in again.sentence, again.failure
    word = again.consent("sink.adopt")["sink_adopt"]
    assert warm.write_batch({**options, "sink.adopt": word}, 40).failure is None

    bench.assert_exactly([(f"k{n}", f"w-{n}") for n in range(40)])
    assert not bench.log().open_decisions
