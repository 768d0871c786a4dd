"""An operation is one module: its command, its flags, its Dagster job and the job's configuration come from it."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace

import dagster as dg
import pytest
from rich.console import Console

from dagster_exactly_once.declare.config import ANOTHER_SINK, config_of
from dagster_exactly_once.names import MEMORY
from dagster_exactly_once.recovery.operations import operation_job
from dagster_exactly_once.recovery.work import SinkRegistry
from dagster_exactly_once.resources.transactions import TransactionAdmin
from exactly_once.operation import operations
from exactly_once.operation.end_hanging import COMMIT_HANGING
from exactly_once.operation.model import (
    Operation,
    OperationJob,
    OperationOutcome,
    OperationStep,
    ResultTable,
    force_parameter,
    parameter,
    parameters_of,
    reason_parameter,
    sink_parameter,
)
from exactly_once.operation.rules import Refused
from exactly_once.ops import cli
from exactly_once.ops.cli.arguments import parse
from exactly_once.ops.cli.operations import show_plan

NOBODY = "127.0.0.1:1"


@dataclass(frozen=True, kw_only=True)
class CountParameters:
    """The parameters of a new operation."""

    sink_id: str = sink_parameter("The stream to count.", "sink")
    force: str = force_parameter("consequence", "The consequence, typed out.")
    dry_run: bool = parameter(True, "Only say what there is to count.", "--apply", form="dry_run")
    most: int = parameter(3, "Count up to it.", "--most", metavar="N", form="most")
    reason: str = reason_parameter()


def examined(context, p):
    refusal = None if p.force == "count it" else Refused("nobody said so", "Ask", phrase="count it")
    return OperationOutcome(p.sink_id, f"{p.sink_id} can be counted.", document={"most": p.most}, refusal=refusal)


def counted(context, p, before):
    rows = ResultTable(("number", "square"), [(str(n), str(n * n)) for n in range(p.most)])
    return OperationOutcome(p.sink_id, f"Counted {p.sink_id}.", {"numbers": rows}, {"counted": p.most})


COUNT = Operation(
    CountParameters,
    examined,
    (OperationStep("count", "Counts.", counted),),
    verb="count",
    does="count to a number",
    job=OperationJob("exactly_once_count", "Counts.", "ask", "Asks.", stage="count", prefix="count"),
)


@pytest.fixture
def found(monkeypatch):
    """The new operation, as :func:`operations` finds it once its module is there."""
    monkeypatch.setattr("exactly_once.ops.cli.arguments.operations", lambda: [COUNT])


def test_a_new_operation_is_a_command_with_its_flags(found, capsys):
    """Guards against a second place to touch, which is the one that is forgotten."""
    run = ("--bootstrap-servers", NOBODY, "count", "orders", "--most", "2")
    assert cli.main([*run, "--json"]) == 1
    asked = json.loads(capsys.readouterr().out)
    assert asked == {"dry_run": True, "most": 2, "refused": "nobody said so", "force": "count it"}
    assert cli.main([*run, "--force", "count them"]) == 1
    assert capsys.readouterr().out.count("--force") == 1  # the command that is advised has the right phrase alone
    assert cli.main([*run, "--force", "count it", "--apply", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"counted": 2}


def test_a_dry_run_prints_the_command_that_does_it():
    """Mishap: advice that is another command than the one that was tried."""
    console = Console(width=80, file=io.StringIO(), highlight=False)
    p = CountParameters(sink_id="my orders", most=7)
    show_plan(examined(None, p), COUNT.command("exactly-once", replace(p, dry_run=False)), console)
    assert "exactly-once count 'my orders' --apply --most 7 --force 'count it'" in console.file.getvalue()


def test_a_new_operation_is_a_job_with_its_configuration_and_its_audit_trail():
    """Guards against an operation that only one of the fronts has; and a refusal that names a flag in a launchpad."""
    job = operation_job(COUNT, SinkRegistry(()))
    resources = {"transactions": TransactionAdmin(bootstrap_servers=NOBODY), MEMORY: dg.mem_io_manager}
    job = dg.Definitions(jobs=[job], resources=resources).resolve_job_def("exactly_once_count")

    def run(**config):
        given = {"ops": {"ask": {"config": {"stream": ANOTHER_SINK, "sink_id": "orders", **config}}}}
        with dg.DagsterInstance.ephemeral() as instance:
            return job.execute_in_process(run_config=given, instance=instance, raise_on_error=False)

    dry = run()
    assert dry.success and [e.step_key for e in dry.all_events if e.is_step_skipped] == ["count"]
    refused = run(dry_run=False)
    [failed] = [e for e in refused.all_events if e.is_step_failure]
    assert "set consequence to: count it" in failed.step_failure_data.user_failure_data.description
    done = run(dry_run=False, consequence="count it", most=2, reason="a test")
    [ended] = done.get_asset_materialization_events()
    audit = {name: value.value for name, value in ended.materialization.metadata.items()}
    assert done.success and (audit["count"], audit["count_by"], audit["count_reason"]) == (
        "ended",
        "a person",
        "a test",
    )
    assert [row.data for row in audit["numbers"].records] == [
        {"number": "0", "square": "0"},
        {"number": "1", "square": "1"},
    ]


@pytest.mark.parametrize("operation", operations(), ids=lambda o: o.parameters.__name__)
def test_every_parameter_is_explained_and_reaches_a_front(operation):
    """Guards against a parameter that nobody can give."""
    config = config_of(operation.parameters).model_fields if operation.job else {}
    for one, how in parameters_of(operation.parameters):
        assert how.text and (how.flags or how.form or one.name in COMMIT_HANGING.preset), one.name
        assert not how.form or not operation.job or config[how.form].description.startswith(how.text)
    if operation.verb:
        with pytest.raises(SystemExit) as ended:
            parse([*operation.verb.split(), "--help"])
        assert ended.value.code == 0
