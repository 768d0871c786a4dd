"""docs/production.md says what the code does where somebody plans by it."""

from __future__ import annotations

import re

import yaml

from exactly_once.commitlog.commit_log import LOG_TRANSACTION_TIMEOUT_MS
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS
from exactly_once.participants.kafka.transactions import WARN
from exactly_once.protocol.encoding import FORMAT
from exactly_once.protocol.too_long import SPARE
from testkit.syntax import ROOT

PAGE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_every_alert_has_its_line_and_no_other() -> None:
    """Guards against an alert that pages somebody with nothing to read."""
    rules = yaml.safe_load((ROOT / "observability" / "prometheus-rules.yaml").read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    table = PAGE.split("\n## Monitoring and alerts\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(ExactlyOnce\w+)`", table)) == alerts


def test_the_format_of_the_commit_log_is_the_one_in_the_code() -> None:
    """Guards against an upgrade whose way back is closed, and the page says nothing."""
    assert f"have a format number, now {FORMAT}." in TEXT
    assert f"The commit log has **format {FORMAT}**." in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_shares_of_the_timeout_are_those_in_the_code() -> None:
    """Somebody chooses a timeout by them."""
    assert (
        f"above {1 - SPARE:.0%}".replace("%", " %") in TEXT and f"it warns above {WARN:.0%}".replace("%", " %") in TEXT
    )
    assert f"(default: {DEFAULT_TRANSACTION_TIMEOUT_MS // 60_000} minutes, " in TEXT
    errors = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert f"below the {LOG_TRANSACTION_TIMEOUT_MS // 1000} s that the commit log needs" in " ".join(errors.split())
