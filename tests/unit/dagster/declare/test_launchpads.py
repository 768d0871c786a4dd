"""What a person finds in a launchpad: the streams to choose from, and the fields that a start needs."""

import dagster as dg
import pytest
import yaml
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap

from dagster_exactly_once import (
    Backfill,
    Complete,
    StreamConfig,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
)
from dagster_exactly_once.declare.config import (
    ANOTHER_SINK,
    VerifyConfig,
    config_of,
    parameters_from,
    sink_of,
    with_streams,
)
from dagster_exactly_once.names import (
    HANGING_JOB,
    RECOVERY_JOB,
    REPAIR_JOB,
    SUCCESSOR_JOB,
)
from exactly_once.errors import InvalidOption
from exactly_once.tools.operation import operations
from exactly_once.tools.operation.model import parameters_of
from exactly_once.tools.operation.retire_sink import SUCCESSOR
from exactly_once.tools.verify import VerifyParameters

JOBS = {o.job.name: o.job.first for o in operations() if o.job is not None and o.job.name != SUCCESSOR_JOB}


@exactly_once_stream(source="orders", outputs=["orders_clean"], backfill=Backfill.daily("2026-01-01"))
def clean_orders(events):
    return events


@exactly_once_stream(source="clicks", outputs=["clicks_clean"], sink_id="clicks.v2")
def clicks(events):
    return events


KAFKA = {"bootstrap_servers": "broker:9092"}
RESOURCES = exactly_once_resources(work_dir="spark", checkpoints="s3://bucket", kafka=KAFKA)
DEFS = exactly_once_definitions(clean_orders, clicks, resources=RESOURCES)


def refused(job, config):
    """What Dagster says of a configuration before it launches a run; empty where it takes it."""
    try:
        dg.validate_run_config(DEFS.resolve_job_def(job), {"ops": {JOBS[job]: {"config": config}}})
    except dg.DagsterInvalidConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("job", JOBS)
def test_a_repair_offers_the_streams_by_the_names_that_every_other_page_uses(job):
    """price-orders, where all else is called price_orders: the id stands on no other page, and a typo passed."""
    for stream in ("clean_orders", "clicks", "clean_orders_backfill", ANOTHER_SINK):
        assert refused(job, {"stream": stream}) == ""
    assert "not in enum" in refused(job, {"stream": "clean-orders"})
    op = DEFS.resolve_job_def(job).graph.node_named(JOBS[job]).definition
    field = op.config_schema.as_field().config_type.fields["stream"]
    assert "One of clean_orders, clicks, clean_orders_backfill, another-sink." in field.description
    assert "stream" in refused(job, {}), "a stream by default would be the wrong one of two, at the worst moment"


@pytest.mark.parametrize("kind", [config_of(o.parameters) for o in operations() if o.job])
def test_a_chosen_stream_is_its_sink_and_another_sink_is_named(kind):
    """A stream that was renamed left its transactions under an id that no name leads to."""
    config = with_streams(kind, {"clicks": "clicks.v2"})
    by_name = {member.name: member for member in config.model_fields["stream"].annotation}
    assert sink_of(config(stream=by_name["clicks"])) == "clicks.v2"
    assert sink_of(config(stream=by_name["clicks"], sink_id="clicks.v2")) == "clicks.v2"
    assert sink_of(config(stream=by_name[ANOTHER_SINK], sink_id="old-name")) == "old-name"
    with pytest.raises(InvalidOption, match="stream: another-sink"):
        sink_of(config(stream=by_name["clicks"], sink_id="old-name"))
    with pytest.raises(InvalidOption, match="valid sink id"):
        sink_of(config(stream=by_name[ANOTHER_SINK]))


class Own(StreamConfig):
    """What a person gives to ``priced``."""

    currency: str = "EUR"


@exactly_once_stream(
    source="orders",
    outputs="priced_orders",
    sink_id="priced-v2",
    continues="priced",
    rejected="priced_rejected",
    complete=Complete.hourly("2026-01-01"),
)
def priced(events, config: Own):
    return events


def filled_in(job, op):
    """What the launchpad of a job shows when it opens."""
    snapshot = (
        exactly_once_definitions(clean_orders, priced, resources=RESOURCES).resolve_job_def(job).get_job_snapshot()
    )
    schema = snapshot.config_schema_snapshot
    root = schema.get_config_snap(snapshot.mode_def_snaps[0].root_config_key)
    return yaml.safe_load(default_values_yaml_from_type_snap(schema, root))["ops"][op]["config"]


def test_the_launchpad_of_a_stream_shows_the_two_fields_that_a_start_needs_and_the_streams_own():
    """They stood at the third and the ninth place of a dozen; the others are explained beside the editor."""
    assert list(filled_in("clean_orders_stream", "stream_clean_orders").items()) == [
        ("mode", "until_stopped"),
        ("start_from", ""),
    ]
    assert set(filled_in("priced_stream", "stream_priced")) == {"currency", "mode", "start_from"}


def test_the_launchpads_of_repairs_show_what_a_person_decides_each_time():
    assert set(filled_in(RECOVERY_JOB, JOBS[RECOVERY_JOB])) == {"dry_run", "reason", "restart"}
    assert set(filled_in(REPAIR_JOB, JOBS[REPAIR_JOB])) == {"dry_run", "reason"}
    assert set(filled_in(HANGING_JOB, JOBS[HANGING_JOB])) == {"dry_run", "reason", "transaction"}
    assert set(filled_in(SUCCESSOR_JOB, SUCCESSOR.job.first)) == {"dry_run", "reason"}


def test_a_job_that_changes_something_begins_with_a_dry_run():
    """One launchpad of four began with the deed, for whoever had learnt on the others that a launch only looks."""
    assert {name: filled_in(name, op)["dry_run"] for name, op in JOBS.items()} == dict.fromkeys(JOBS, True)
    assert filled_in(SUCCESSOR_JOB, SUCCESSOR.job.first)["dry_run"] is True
    for job, op in (("priced_resend", "resend_priced"), ("priced_close_windows", "close_windows_priced")):
        assert filled_in(job, op)["dry_run"] is True


def test_a_sink_is_retired_only_for_a_stream_that_declares_to_continue_it():
    """A job in every code location that ends a stream for good, with all streams to choose from."""
    assert SUCCESSOR_JOB not in {job.name for job in DEFS.get_repository_def().get_all_jobs()}
    job = exactly_once_definitions(clean_orders, priced, resources=RESOURCES).resolve_job_def(SUCCESSOR_JOB)
    field = job.graph.node_named(SUCCESSOR.job.first).definition.config_schema.as_field().config_type.fields["stream"]
    assert "One of priced, another-sink." in field.description


def test_the_check_verified_asks_for_what_the_command_asks_for():
    """Mishap: a flag of the command with another default, limit or sentence than the field of the check."""
    flags = {how.form: (one, how) for one, how in parameters_of(VerifyParameters) if how.form}
    assert set(VerifyConfig.model_fields) - set(flags) == {"by_origin"}, "the declaration says where, not the launchpad"
    for name, (one, how) in flags.items():
        field = VerifyConfig.model_fields[name]
        assert (field.default, field.description) == (one.default, f"{how.text}.")
        with pytest.raises(ValueError, match=name):
            VerifyConfig(**{name: how.least - 1})
    found = parameters_from(VerifyParameters, VerifyConfig(batches=7), "orders", checkpoint="/c")
    assert found == VerifyParameters("orders", "/c", batches=7)


def test_a_field_that_the_launchpad_leaves_out_has_its_default_and_says_it():
    """A run must not start with other numbers than those of the version before."""
    config = StreamConfig()
    assert (config.trigger_interval_s, config.max_offsets_per_trigger, config.report_interval_s) == (1.0, 100_000, 30.0)
    assert (config.sink_options, config.once.options(), config.rotate_after_h) == ({}, {}, 0.0)
    assert "Default: 100,000." in StreamConfig.model_fields["max_offsets_per_trigger"].description
