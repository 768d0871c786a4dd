"""The command line without a broker: arguments, exit codes, errors, and what it says of a transaction."""

import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

import exactly_once
from exactly_once.inspection.findings import Inspection, Owner, PendingDecision, PendingPart, judge_transaction
from exactly_once.inspection.processes import Frozen, Process, State
from exactly_once.inspection.words import duration, plural, when
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Claim, Decision, PreparedTransaction
from exactly_once.tools import cli
from exactly_once.tools.cli.arguments import parse
from exactly_once.tools.cli.cluster import connection_of, program
from exactly_once.tools.cli.explain import explain
from exactly_once.tools.cli.tables import show_list
from exactly_once.txn.coordinators import Description
from tests.unit.ops.test_checkpoint_repair import QUERY, Site

ID = "eo:s:3:1:0.0"
NOW = 31_000


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command; (exit code, standard output, standard error)."""
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)

    def run(*arguments):
        code = cli.main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["transactions"],
        ["transactions", "commit"],
        ["transactions", "abort"],
        ["checkpoint", "inspect"],
        ["checkpoint", "repair", "/c"],
        ["recover"],
        ["transactions", "abort", ID, "--hanging", "t-0@1"],
        ["transactions", "purge"],
        ["transactions", "list", "--older-than", "-5"],
    ],
)
def test_wrong_usage_exits_with_2(wrong, capsys):
    with pytest.raises(SystemExit) as exit:
        parse(wrong)
    assert exit.value.code == 2 and "usage: exactly-once" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "says"), [(None, "is not set"), ("", "is empty")])
def test_an_empty_variable_is_said_by_its_name_and_not_as_an_option(run, monkeypatch, value, says):
    """Mishap: "kafka.bootstrap.servers is missing. Nothing was written" of a command that has no such option and only
    reads: env.sh had been sourced before the broker was up.
    """
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    if value is not None:
        monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", value)
    code, out, err = run("verify", "orders")
    assert code == 2 and out == "" and err.startswith(f"EO-OPTION: KAFKA_BOOTSTRAP_SERVERS {says} in the environment")
    assert "--bootstrap-servers" in err and "Nothing was written" not in err


def test_the_doctor_looks_at_the_host_without_a_cluster(run, monkeypatch):
    """Outage: a new host is to be examined before it has a cluster, and the doctor only asked for one."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "")
    code, out, _ = run("doctor", "--json")
    checks = {c["check"]: c for c in json.loads(out)["checks"]}
    assert code == 1 and {"Python", "Java", "pyspark", "connector", "cluster"} <= set(checks)
    assert (
        checks["cluster"]["verdict"] == "wrong" and "KAFKA_BOOTSTRAP_SERVERS is empty" in checks["cluster"]["sentence"]
    )


def test_a_silent_cluster_is_one_sentence_on_stderr(run, monkeypatch):
    """Mishap: at night nobody reads a traceback, nor a page of connection attempts."""
    monkeypatch.setattr("exactly_once.tools.cli.commands.BUDGET_S", 0.5)
    code, out, err = run("--bootstrap-servers", "127.0.0.1:1", "transactions", "list")
    assert code == 1 and out == "" and err.startswith("EO-UNREACHABLE: ") and err.count("\n") == 1


def test_a_refusal_is_one_json_document_for_a_script(run):
    code, out, err = run("--bootstrap-servers", "127.0.0.1:1", "transactions", "commit", "flights-feed", "--json")
    assert code == 1 and err.startswith("EO-REFUSED: ")
    assert json.loads(out)["error"] | {"what": "", "way_out": ""} == {
        "code": "EO-REFUSED",
        "what": "",
        "safe": "Nothing was changed",
        "way_out": "",
        "force": None,
    }


def test_a_bug_is_told_without_a_traceback(run, monkeypatch):
    monkeypatch.setattr("exactly_once.tools.cli.operations.chosen", lambda args: 1 / 0)
    code, _, err = run("transactions", "list")
    assert code == 1 and err.startswith("EO-INTERNAL: ZeroDivisionError") and err.count("\n") == 1


# -- the cluster, and arguments of every verb --------------------------------------------------------------------------

VERBS = [
    ["transactions", "list"],
    ["transactions", "explain", ID],
    ["transactions", "commit", ID],
    ["transactions", "abort", ID],
    ["checkpoint", "inspect", "/c"],
    ["checkpoint", "repair", "/c", "--sink", "s"],
    ["recover", "s"],
    ["doctor"],
]
NAMED = ["--bootstrap-servers", "b:1", "--command-config", "/f", "--json"]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_the_cluster_and_json_are_taken_before_and_after_the_verb(verb):
    """Outage: minutes spent on the order of arguments, or a flag that is silently ignored in one of the places."""
    for arguments in ([*NAMED, *verb], [*verb, *NAMED], [verb[0], *NAMED, *verb[1:]]):
        args = parse(arguments)
        assert (args.bootstrap_servers, args.command_config, args.json) == ("b:1", "/f", True), arguments
    args = parse(verb)
    assert (args.bootstrap_servers, args.command_config, args.json) == (None, None, False)


def test_the_place_nearest_to_the_verb_wins():
    """Loss: a command that ends transactions on the cluster of an alias, and not on the one that was typed."""
    args = parse(["--bootstrap-servers", "alias:1", "transactions", "list", "--bootstrap-servers", "typed:1"])
    assert args.bootstrap_servers == "typed:1"


def test_the_observer_takes_the_cluster_in_both_places_and_refuses_json(capsys):
    """Outage: a script waits for a JSON document that the observer never prints."""
    for arguments in ([*NAMED[:4], "metrics"], ["metrics", *NAMED[:4]]):
        args = parse(arguments)
        assert (args.bootstrap_servers, args.command_config, args.json) == ("b:1", "/f", False)
    for arguments in (["--json", "metrics"], ["metrics", "--json"]):
        with pytest.raises(SystemExit) as exit:
            parse(arguments)
        assert exit.value.code == 2 and "--json" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys):
    """Outage: a report of a bug that was mended long ago."""
    with pytest.raises(SystemExit) as exit:
        parse(["--version"])
    assert exit.value.code == 0 and capsys.readouterr().out == f"exactly-once {exactly_once.__version__}\n"


def test_a_wrong_file_is_refused_before_anything_connects_and_shows_no_secret(run, tmp_path):
    """Outage: minutes of connection attempts for a typing error; and a password in the log of a build."""
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nsasl.pasword=s3cret\n")
    for arguments in (["--command-config", str(file), "transactions", "list"], ["recover", "s", "--command-config"]):
        code, out, err = run(*arguments, *([str(file)] if arguments[0] == "recover" else []))
        assert code == 2 and out == "" and err.startswith("EO-OPTION: ") and "line 2: sasl.pasword" in err
        assert "did you mean sasl.password?" in err
        assert "s3cret" not in err


def test_the_commands_to_copy_name_the_cluster_in_the_same_way(run, tmp_path):
    """Loss: advice that is followed on the cluster of the environment."""
    file = tmp_path / "my client.properties"
    file.write_text("bootstrap.servers=file:1\n")
    args = parse(["transactions", "list", "--command-config", str(file), "--bootstrap-servers", "flag:1"])
    assert program(args) == f"exactly-once --bootstrap-servers flag:1 --command-config '{file}'"
    assert connection_of(args).bootstrap_servers == "flag:1"
    assert connection_of(parse(["--command-config", str(file), "transactions", "list"])).bootstrap_servers == "file:1"


# -- checkpoint --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_read_without_a_cluster(run, tmp_path):
    Site(tmp_path).ran(5, decided=4)
    code, out, _ = run("checkpoint", "inspect", str(tmp_path), "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["query_id"], found["last_planned"], found["last_committed"], found["in_flight"]) == (QUERY, 5, 4, 5)
    assert found["kafka_offsets"] == {"in": {"0": 5}} and found["progress"] is None
    code, out, _ = run("checkpoint", "inspect", str(tmp_path))
    assert code == 0 and "batch 5, planned 2023-" in out and "input in, up to:\n    0@5\n" in out


def test_a_place_without_a_checkpoint_is_not_right(run, tmp_path):
    """Mishap: a mistyped location that looks like a stream that never started."""
    code, out, _ = run("checkpoint", "inspect", str(tmp_path / "missing"))
    assert code == 1 and "There is no checkpoint" in out


def test_a_torn_checkpoint_is_named_with_its_repair(run, tmp_path):
    """Mishap: a traceback where a person needs a command."""
    Site(tmp_path).ran(5)
    (tmp_path / "commits" / "5").write_text("")
    code, out, _ = run("checkpoint", "inspect", str(tmp_path))
    assert code == 1 and "HEALTH-CHECKPOINT-TORN" in out and f"checkpoint repair {tmp_path}" in out
    (tmp_path / "metadata").write_text("")
    code, out, _ = run("checkpoint", "inspect", str(tmp_path), "--json")
    assert code == 1 and json.loads(out)["torn"] == {"metadata": "it is empty", "commits/5": "it is empty"}


# -- explain -----------------------------------------------------------------------------------------------------------

HANDLE = PreparedTransaction(ID, 11, 2, 1, 1234)
DECISION = Decision("q", 7, 3, (HANDLE,), "d", 5, 2_000, topics=("out",))


def described(state="Ongoing", transactional_id=ID, epoch=2):
    return Description(transactional_id, state, 11, epoch, 60_000, 1_000, (("out", 1),), 1)


def inspection(alive, *decisions, state="decided", purpose="stream"):
    claim = Claim(3, "q", 1_000, purpose, "host-a", 4711)
    log = LogState(claim, decisions)
    pending = tuple(
        PendingDecision("q", d.batch_id, 3, 2_000, ("out",), (PendingPart(ID, 1, 1234, state),)) for d in decisions
    )
    return Inspection(
        "s", Owner(claim, alive), (judge_transaction(described(), log, NOW),), pending, checked_ms=NOW, log=log
    )


def commands(explanation):
    return [o.command for o in explanation.options]


def test_a_decided_transaction_of_a_dead_driver_is_to_be_committed():
    """Loss: its timeout aborts it while everybody believes that the batch is done."""
    found = explain(described(), inspection(False, DECISION))
    assert found.what == "Part 1 of batch 7 of sink s, 1,234 records."
    assert "it is gone" in found.owner
    assert re.fullmatch(r"Ongoing for 30 s; after 1 min .*\(30 s left\)\. Verdict: decided\.", found.state)
    assert "missing from batch 7 until the stream starts" in found.by_itself
    assert commands(found) == [f"exactly-once transactions commit {ID}", "exactly-once recover s"]


def test_an_undecided_transaction_of_a_dead_driver_is_to_be_aborted():
    found = explain(described(), inspection(False), "exactly-once --bootstrap-servers b:9092")
    assert "not decided" in found.what and "the next start writes" in found.by_itself
    assert commands(found) == [
        f"exactly-once --bootstrap-servers b:9092 transactions abort {ID}",
        "exactly-once --bootstrap-servers b:9092 recover s",
    ]


@pytest.mark.parametrize(("alive", "said"), [(True, "it is alive"), (None, "cannot tell whether it is alive")])
def test_commands_that_would_fence_a_driver_say_so_and_carry_the_phrase(alive, said):
    """Mishap: a healthy stream that is stopped by a command that was copied."""
    found = explain(described(), inspection(alive))
    assert said in found.owner
    force = " --force 'fence the driver 4711 on host-a'"
    wait = ["wait"] if alive else []
    assert commands(found) == [f"exactly-once transactions abort {ID}{force}", *wait, f"exactly-once recover s{force}"]
    assert "EO-FENCED" in found.options[-1].effect


def test_a_frozen_driver_is_called_that_with_the_command_that_ends_it(capsys):
    """Mishap: "it is alive and ends its own transactions", of a process that a signal has stopped; readers wait for 15
    minutes.
    """
    found = inspection(True)
    stopped = (Frozen(Process("host-a", "m", 4711, 1.0), State.STOPPED),)
    found = replace(found, owner=replace(found.owner, frozen=stopped))
    explained = explain(described(), found)
    said = "process 4711 on host-a is stopped by a signal"
    assert f"it is frozen: {said}" in explained.owner
    assert commands(explained)[0] == "kill -9 4711", "a driver that is fenced only is frozen still"
    assert "wait" not in commands(explained)
    show_list([found], [], None, [], Console())
    assert f"it is frozen: {said}." in " ".join(capsys.readouterr().out.split())


def test_tables_and_explanations_name_who_operates_the_owner(capsys):
    """Mishap: at night, nobody knows what "process 1 on worker-0" is, or whom to wake."""
    found = inspection(None)
    found = replace(found, owner=Owner(replace(found.owner.claim, operator="dagster/prod/0a1b"), None))
    explained = explain(described(), found)
    assert "driver 4711 on host-a (operated by dagster/prod/0a1b), claim 3" in explained.owner
    assert " --force 'fence the driver 4711 on host-a (operated by dagster/prod/0a1b)'" in commands(explained)[0]
    show_list([found], [], None, [], Console())
    shown = "Owner: A stream: driver 4711 on host-a (operated by dagster/prod/0a1b), claim 3 of "
    assert shown in " ".join(capsys.readouterr().out.split()), "wrapped"


def test_what_is_not_under_way_or_not_ours_offers_nothing_to_do():
    rest = Inspection("s", checked_ms=NOW)
    assert explain(described("CompleteCommit"), rest).options == ()
    foreign = explain(described(transactional_id="flights-feed"), Inspection("", checked_ms=NOW))
    assert foreign.what.startswith("A foreign id") and foreign.options == () and "own client" in foreign.by_itself
    assert foreign.transaction.verdict == "foreign" and "claimed" not in foreign.owner
    unknown = explain(described("", epoch=-1), rest)
    assert unknown.state.startswith("No coordinator knows")


def test_a_part_that_was_lost_is_said_to_be_lost():
    found = explain(described("CompleteAbort", epoch=3), inspection(False, DECISION, state="lost"))
    assert found.transaction is None


def test_the_commit_log_s_own_transaction_is_explained():
    assert "the sink's decisions" in explain(described(transactional_id="eo:s:log"), inspection(False)).what


def test_a_batch_write_is_called_by_its_id():
    write = replace(DECISION, query_id="write:2013-01-05", batch_id=0)
    assert explain(described(), inspection(False, write)).what == "Part 1 of write 2013-01-05 of sink s, 1,234 records."


def test_numbers_are_said_as_people_say_them():
    assert [duration(s) for s in (0.42, 12, 184, 7_500, 100_000)] == [
        "0.4 s",
        "12 s",
        "3 min 4 s",
        "2 h 5 min",
        "1 d 3 h",
    ]
    assert (plural(1, "record"), plural(1234, "record"), plural(2, "batch")) == (
        "1 record",
        "1,234 records",
        "2 batches",
    )
    assert when(0, 5) == "an unknown time" and when(1_000, 13_000) == "1970-01-01 00:00:01 UTC (12 s ago)"
