"""Dagster's real daemon over a run that is killed at its start: the sensors see it, recover the sink and start the
stream again. What a run leaves that is killed in the middle of its work is in test_operation.py.
"""

import pytest

from platform_assets.constants import STREAM_JOB, TRANSACTIONS
from sensors.stream import TAG_ATTEMPT, TAG_CAUSE, TAG_RESTART_OF
from tests.dagster.story import PATIENCE_S, Story
from tests.dagster.webserver import Dagster


@pytest.fixture(scope="module")
def dagster(site):
    with Dagster(site) as running:
        yield running


@pytest.fixture(scope="module")
def story(site, dagster):
    with Story(site, dagster) as told:
        yield told


def test_a_run_that_is_killed_at_its_start_is_recovered_and_started_again_by_the_sensors(story, dagster):
    """kill -9 of the run's process before it has a stream. Nobody touches anything; every departure comes out once."""
    story.feed.send(500)
    killed = dagster.launch(STREAM_JOB, story.config)
    dagster.kill_run(killed)
    story.feed.trickle()

    recovery, new = story.await_restart(killed)

    dagster.wait_for(recovery, "SUCCESS", PATIENCE_S)
    tags = dagster.tags(recovery)
    assert tags[TAG_RESTART_OF] == killed and killed[:8] in tags[TAG_CAUSE]
    tags = dagster.tags(new)
    assert tags[TAG_RESTART_OF] == killed and tags[TAG_ATTEMPT] == "1" and recovery[:8] in tags[TAG_CAUSE]
    story.assert_one_stream(new)
    ended = [o for o in dagster.observations(TRANSACTIONS) if o.get("recovery") == "ended"]
    assert [o["recovery_by"] for o in ended] == ["sensor run_failure"] and ended[0]["recovery_at_rest"] is True
    story.assert_exactly_once()
