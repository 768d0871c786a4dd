"""The board and the alert rules: they name what is there, and say what to do in commands that exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from exactly_once.inspection.findings import BlockedPartition
from exactly_once.tools.cli.arguments import parse
from exactly_once.tools.diagnosis import SinkFacts, diagnose
from exactly_once.tools.diagnosis.facts import Standing
from exactly_once.tools.metrics.instruments import INSTRUMENTS
from testkit.symptoms import planted, sink

FOLDER = Path(__file__).resolve().parents[3] / "observability"
BOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
GROUPS = yaml.safe_load((FOLDER / "prometheus-rules.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
SERIES = {series: instrument for instrument in INSTRUMENTS for series in instrument.series}

#: Of Prometheus, as far as the expressions here use it.
WORDS = {"and", "or", "unless", "offset", "by", "on"}
FUNCTIONS = {
    "absent",
    "deriv",
    "histogram_quantile",
    "increase",
    "max",
    "min_over_time",
    "rate",
    "sum",
}
#: What Prometheus adds to a series by itself.
ADDED = {"le", "job", "instance"}

_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"


def expressions():
    for rule in RULES:
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in PANELS:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(rf"label_values\(({_NAME}), ({_NAME})\)", variable["definition"]).groups()
            yield pytest.param(f"sum by ({label}) ({series})", id=f"variable {variable['name']}")


def names_in(expression):
    """Series, functions and label names of an expression; anything else in it raises."""
    labels = {m for inside in re.findall(r"\{(.*?)\}", expression) for m in re.findall(rf"({_NAME})\s*[=!]", inside)}
    rest = re.sub(r"\{.*?\}|\[[^\]]+\]|offset \d+[smh]", " ", expression)
    for inside in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", rest):
        labels |= set(re.findall(_NAME, inside))
    rest = re.sub(r"\b(by|on)\s*\([^)]*\)", " ", rest)
    functions = set(re.findall(rf"({_NAME})\s*\(", rest)) - WORDS
    series = set(re.findall(_NAME, rest)) - functions - WORDS
    return series, functions, labels


@pytest.mark.parametrize("expression", list(expressions()))
def test_expressions_name_only_what_exists(expression):
    """Mishap: an alert on a name that nobody exposes is silent forever."""
    series, functions, labels = names_in(expression)
    assert series and series <= set(SERIES), series - set(SERIES)
    assert functions <= FUNCTIONS
    known = {label for name in series for label in SERIES[name].attributes}
    assert labels <= known | ADDED
    assert expression.count("(") == expression.count(")")


def test_what_the_check_of_names_would_refuse():
    """Mishap: a check that lets everything through."""
    series, functions, labels = names_in('sum by (sink, x) (rate(no_such_total{a="b"}[5m] offset 5m)) > 5')
    assert (series, functions, labels) == ({"no_such_total"}, {"sum", "rate"}, {"sink", "x", "a"})


def test_every_instrument_is_on_the_board():
    drawn = {SERIES[s] for panel in PANELS for t in panel["targets"] for s in names_in(t["expr"])[0]}
    assert drawn == set(INSTRUMENTS)


def links(title):
    """Return the panels with a link of this title, and its address."""
    found = ((panel, link) for panel in PANELS for link in panel["fieldConfig"]["defaults"].get("links", ()))
    return [(panel, link["url"]) for panel, link in found if link["title"] == title]


def test_each_topic_leads_to_the_lineage_of_its_asset():
    """Mishap: readers wait for a topic, and nobody knows whose assets are made from it. Dagster is another server, so
    its address is a variable, and stays as it is typed.
    """
    [dagster] = [v for v in BOARD["templating"]["list"] if v["type"] == "textbox"]
    linked = links("Lineage of ${__field.labels.topic}")
    assert [panel["id"] for panel, _ in linked] == [19, 20]
    for panel, url in linked:
        assert url == f"${{{dagster['name']}:raw}}/assets/${{__field.labels.topic}}?view=lineage"
        [target] = panel["targets"]
        assert "by (sink, topic)" in target["expr"], "or the series has no such label"
    assert urlsplit(dagster["query"]).netloc and dagster["current"]["value"] == dagster["query"]


def test_the_durations_lead_to_the_traces_of_their_sink():
    """Mishap: a slow commit on the board, and nobody finds the batch."""
    [tempo] = [v for v in BOARD["templating"]["list"] if v["query"] == "tempo"]
    linked = links("Traces of ${__field.labels.sink}")
    assert [panel["title"] for panel, _ in linked] == ["Prepare", "Decide", "Complete"]
    for _, url in linked:
        address = urlsplit(url)
        found = json.loads(parse_qs(address.query)["panes"][0])["traces"]
        assert address.path == "/explore" and found["datasource"] == f"${{{tempo['name']}}}"
        [query] = found["queries"]
        assert query["query"] == ('{ name =~ "(batch|write) .*" && span.exactly_once.sink = "${__field.labels.sink}" }')


def test_the_board_can_be_imported():
    assert BOARD["uid"] and BOARD["title"] and BOARD["schemaVersion"]
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    variables = {v["name"]: v for v in BOARD["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus" and variables["sink"]["multi"]
    for panel in PANELS:
        assert panel["title"] and panel["description"] and panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    squares = [
        (x, y)
        for p in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(squares) == len(set(squares)), "panels overlap"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_what_is_safe_and_what_to_do(rule):
    """Mishap: a page at night that only says that something is wrong."""
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"ExactlyOnce[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) - {"code"} == {"summary", "safe", "action"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    labels = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert labels <= {"sink", "topic"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_the_commands_of_an_alert_exist(rule):
    """Mishap: the one command that is copied at night has another name by now."""
    action = rule["annotations"]["action"].replace("{{ $labels.sink }}", "s")
    commands = re.findall(
        r"exactly-once ((?:transactions list|recover s|metrics)(?: --[a-z-]+(?: s\b| \d+)?)*)", action
    )
    assert commands and len(commands) == action.count("exactly-once ")
    for command in commands:
        assert parse(shlex.split(command)).command in ("transactions list", "recover", "metrics")


@pytest.mark.parametrize("rule", [r for r in RULES if "code" in r["annotations"]], ids=lambda rule: rule["alert"])
def test_an_alert_on_a_symptom_has_the_remedy_of_every_other_screen(rule):
    """Mishap: the alert sends its reader another way than the command that it names."""
    action = rule["annotations"]["action"].replace("{{ $labels.sink }}", "s")
    ours = SinkFacts(sink(), standing=(Standing(BlockedPartition("out", 0, 40, 43, True)),))
    found = [*planted(rule["annotations"]["code"]), *diagnose(ours)]
    remedies = {d.remedy for d in found if d.code == rule["annotations"]["code"]}
    assert any(remedy[1:] in action for remedy in remedies), (action, remedies)


def test_alert_names_are_unique():
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))


def test_the_rules_fire_when_they_should_and_only_then():
    """Mishap: a healthy stream that pages somebody, or a dead one that does not."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    for arguments in (["check", "rules", "prometheus-rules.yaml"], ["test", "rules", "prometheus-rules.test.yaml"]):
        ended = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    tested = (FOLDER / "prometheus-rules.test.yaml").read_text()
    assert {rule["alert"] for rule in RULES} <= set(re.findall(r"alertname: (\w+)", tested))


def test_the_readme_lists_every_metric():
    text = (FOLDER / "README.md").read_text()
    for instrument in INSTRUMENTS:
        base = instrument.series[0].removesuffix("_bucket")
        short = base.replace("exactly_once_batch_decide", "..._decide").replace(
            "exactly_once_batch_complete", "..._complete"
        )
        assert base in text or short.removesuffix("_duration_seconds") in text, base
