"""The bill of materials is whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from exactly_once.sparkenv.jars import pinned
from testkit.stream import ROOT
from testkit.syntax import loaded


@pytest.fixture(scope="module")
def dependencies() -> ModuleType:
    return loaded(ROOT / "dev" / "tools" / "dependencies.py")


@pytest.mark.long
def test_every_pinned_package_and_every_jar_is_in_the_bill_of_materials(
    dependencies: ModuleType, tmp_path: Path
) -> None:
    """Incident: a vulnerability is published, and nobody knows that one of the jars has it."""
    assert dependencies.main(["sbom", str(tmp_path / "sbom.json")]) == 0
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] == "1.6"
    listed = {(c["name"], c["version"]) for c in bill["components"] if c["purl"].startswith("pkg:pypi/")}
    lines = (ROOT / "distributions" / "constraints.txt").read_text().splitlines()
    wanted = {found.groups() for line in lines if (found := re.match(r"([\w.-]+)==([^\s;]+)", line))}
    assert wanted and wanted <= listed
    digests = {h["content"] for c in bill["components"] for h in c.get("hashes", ())}
    assert set(pinned().values()) <= digests
    assert "pkg:maven/org.apache.kafka/kafka_2.13@4.3.1" in {c["purl"] for c in bill["components"]}
    assert "://" not in json.dumps(bill["components"]), "no address of this machine's index"


def test_an_audit_that_could_not_ask_does_not_say_that_all_is_well(
    dependencies: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Incident: pip-audit skips what its service does not know, and ends well."""
    answer = {
        "dependencies": [
            {"name": "one", "skip_reason": "Dependency not found on PyPI and could not be audited"},
            {"name": "two", "version": "1", "vulns": []},
        ]
    }
    fake = tmp_path / "pip-audit"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    fake.chmod(0o755)
    monkeypatch.setattr(dependencies, "tool", lambda name: fake)
    assert dependencies.audit() == 2
    said = capsys.readouterr()
    assert "1 of 2 packages audited" in said.out and "does not know 1 packages (one" in said.err
    answer["dependencies"] = [
        {"name": "two", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"], "aliases": []}]}
    ]
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\nexit 1\n")
    assert dependencies.audit() == 1
    assert "two 1: PYSEC-1, fixed in 2" in capsys.readouterr().out
    fake.write_text("#!/bin/sh\necho no route >&2\nexit 1\n")
    assert dependencies.audit() == 2
    assert "nothing was audited" in capsys.readouterr().err
