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
from dagster_exactly_once.recovery.operations import JobExtras, SinkRegistry, operation_job
from dagster_exactly_once.resources.transactions import TransactionAdmin
from exactly_once.protocol.names import commit_log_id
from exactly_once.protocol.records import Decision
from exactly_once.tools import cli
from exactly_once.tools.cli.arguments import parse
from exactly_once.tools.cli.operations import chosen, show_plan
from exactly_once.tools.operation import operations
from exactly_once.tools.operation.end_hanging import COMMIT_HANGING
from exactly_once.tools.operation.log_records import DROP_FOREIGN, UNDO, Logged, UndoParameters
from exactly_once.tools.operation.model import (
    Operation,
    OperationContext,
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
from exactly_once.tools.operation.rules import Refused

NOBODY = "127.0.0.1:1"


@dataclass(frozen=True, kw_only=True)
class CountParameters:
    """The parameters of a new operation."""

    sink_id: str = sink_parameter("The stream to count.", "sink")
    force: str = force_parameter("consequence", "The consequence, typed out.")
    dry_run: bool = parameter(True, "Only say what there is to count.", "--apply", form="dry_run")
    most: int = parameter(3, "Count up to it.", "--most", metavar="N", form="most")
    reason: str = reason_parameter()


@dataclass(frozen=True, kw_only=True)
class AloneParameters(CountParameters):
    """The parameters of an operation on a sink that nobody chooses."""

    sink_id: str = sink_parameter("The sink.", form="")


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
    job=OperationJob("exactly_once_count", "Counts.", "ask", "Asks."),
)


@pytest.fixture
def found(monkeypatch):
    """The new operation, as :func:`operations` finds it once its module is there."""
    monkeypatch.setattr("exactly_once.tools.cli.arguments.operations", lambda: [COUNT])


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


@pytest.mark.parametrize(
    ("flags", "operation"),
    [((), None), (("--undo", "0"), UNDO), (("--undo", "7", "--force", "x"), UNDO), (("--drop-foreign",), DROP_FOREIGN)],
)
def test_a_verb_that_shows_something_runs_an_operation_only_where_a_flag_chooses_it(flags, operation):
    """Loss: a list that undoes a record; and a first record, at offset 0, that nothing undoes."""
    assert chosen(parse(["log", "orders", *flags])) is operation


def test_a_record_of_the_sink_s_own_is_undone_by_no_step_without_the_phrase(monkeypatch):
    """Duplicate: a decision that is forgotten by a mistyped offset, so that its batch is written again."""
    own = Logged(7, 1, b"decision:q:1", Decision("q", 1, 1, (), "d", 2, 0), 5, commit_log_id("orders"), b"v")
    written = []
    monkeypatch.setattr("exactly_once.tools.operation.log_records.log_records", lambda connection, sink_id: [own])
    monkeypatch.setattr("exactly_once.tools.operation.log_records._write", lambda *what: written.append(what[2]))
    context, p = OperationContext(None), UndoParameters(sink_id="orders", offset=7)
    found = UNDO.examine(context, p)
    phrase = "forget decision of batch 1 of q at offset 7"
    assert found.refusal.phrase == phrase and found.document["undone"]["own"] is True
    with pytest.raises(Refused):
        UNDO.apply(context, p)
    assert not written
    done = UNDO.apply(context, replace(p, force=phrase))
    assert written == [[(b"decision:q:1", None)]] and done.document["restored"] is None
    assert done.sentence.startswith("Undid decision of batch 1 of q at offset 7. No record")


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
    assert "consequence to: count it" in failed.step_failure_data.user_failure_data.description
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


def test_an_operation_of_one_op_on_a_sink_of_its_own_runs_again_from_its_failure_as_a_whole():
    """A step of its own would begin without what the examination kept in the memory of a process that is gone."""
    shown = replace(COUNT.job, passed="")
    operation = replace(COUNT, job=shown, preset={"sink_id": "orders-count"}, parameters=AloneParameters)
    seen = []

    def within(context, told):
        seen.append(told.budget_s)
        return replace(told, budget_s=7.0)

    def acted(context, p, before):
        seen.append(context.budget_s)
        return counted(context, p, before)

    operation = replace(operation, steps=(OperationStep("count", "Counts.", acted),))
    job = operation_job(operation, SinkRegistry(()), JobExtras(tags={"whose": "orders"}, within=within))
    resources = {"transactions": TransactionAdmin(bootstrap_servers=NOBODY)}
    job = dg.Definitions(jobs=[job], resources=resources).resolve_job_def("exactly_once_count")
    assert job.tags == {"whose": "orders"} and [*job.graph.node_dict] == ["ask"]

    def run(**config):
        with dg.DagsterInstance.ephemeral() as instance:
            given = {"ops": {"ask": {"config": config}}}
            return job.execute_in_process(run_config=given, instance=instance, raise_on_error=False)

    assert run().success and seen == [10.0], "a dry run by default"
    assert not run(dry_run=False).success and 7.0 not in seen
    done = run(dry_run=False, consequence="count it")
    [ended] = done.get_asset_materialization_events()
    assert done.success and seen[-1] == 7.0 and ended.materialization.description == "Counted orders-count."


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
