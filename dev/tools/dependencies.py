"""The project's dependencies: ``make audit`` asks for known vulnerabilities, ``make sbom`` makes a bill of materials.

Both work on what is pinned, ``constraints.txt`` and ``ivy.sha256``, with pip-audit and cyclonedx-bom in an environment
of their own: what they need is no dependency of the project.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from exactly_once import __version__  # noqa: E402
from exactly_once.sparkenv.jars import cache_folder, pinned, resolve  # noqa: E402

NAME = "pyspark-kafka-exactly-once"
CONSTRAINTS = PROJECT / "distributions" / "constraints.txt"
TOOLS = ("pip-audit>=2.10,<3", "cyclonedx-bom>=7.5,<8")
PLACE = PROJECT / ".run"

#: Checks a document against CycloneDX's own schema.
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(wrong) if wrong else 0)
"""


def main(arguments: Sequence[str]) -> int:
    """Do ``audit`` or ``sbom``; further arguments of ``audit`` go to pip-audit, such as ``-s osv``."""
    what, *more = arguments or [""]
    if what == "audit":
        return audit(more)
    if what == "sbom":
        return sbom(Path(more[0]) if more else PLACE / "sbom.json")
    print("Say audit or sbom", file=sys.stderr)
    return 2


def audit(more: Sequence[str] = ()) -> int:
    """Print what is known against each pinned package; 1 when there is something, 2 when nobody could tell."""
    command = [str(tool("pip-audit")), "-r", str(CONSTRAINTS), "--no-deps", "--disable-pip", "-f", "json", *more]
    ended = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True)
    try:
        found = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(
            f"{ended.stderr[-2000:]}\nThe vulnerability service did not answer: nothing was audited.", file=sys.stderr
        )
        return 2
    vulnerable = [d for d in found if d.get("vulns")]
    unknown = [d["name"] for d in found if "skip_reason" in d]
    for package in vulnerable:
        for known in package["vulns"]:
            fixed = ", ".join(known["fix_versions"]) or "no release"
            print(f"{package['name']} {package['version']}: {known['id']}, fixed in {fixed}")
    print(
        f"{len(found) - len(unknown)} of {len(found)} packages audited, {len(vulnerable)} with known vulnerabilities."
    )
    if unknown:
        print(
            f"The service does not know {len(unknown)} packages ({', '.join(unknown[:3])}, ...): nothing is said of "
            "these. Run it where PyPI itself can be reached, or with AUDIT_ARGS='-s osv'.",
            file=sys.stderr,
        )
    return 1 if vulnerable else 2 if unknown else 0


def sbom(target: Path) -> int:
    """Write the bill of materials: every pinned package, and every jar."""
    made = run([str(tool("cyclonedx-py")), "requirements", str(CONSTRAINTS), "--of", "JSON", "--output-reproducible"])
    bill = json.loads(made)
    resolve()
    bill["components"] = [*map(without_index, bill["components"]), *jars(pinned(), cache_folder() / "ivy")]
    bill["metadata"]["component"] = {"type": "library", "bom-ref": NAME, "name": NAME, "version": __version__}
    text = json.dumps(bill, indent=2) + "\n"
    run([str(tool("python")), "-c", _VALIDATE], text)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    print(f"{len(bill['components'])} components in {target}")
    return 0


def without_index(package: Mapping[str, Any]) -> dict[str, Any]:
    """Return a package without the address of the index that this machine happens to use."""
    return {k: v for k, v in package.items() if k != "externalReferences"}


def jars(sums: Mapping[str, str], ivy: Path) -> list[dict[str, Any]]:
    """Return the components of jars, given ``connector/name.jar`` -> sha256. Ivy's cache says whose each is."""
    homes = {path.name: path for path in ivy.glob("*/*/*/*.jar")}
    found = {}
    for path, digest in sorted(sums.items()):
        name = Path(path).name
        module, organisation = homes[name].parent.parent, homes[name].parent.parent.parent
        version = name.removeprefix(f"{module.name}-").removesuffix(".jar")
        purl = f"pkg:maven/{organisation.name}/{module.name}@{version}"
        found[purl] = {
            "type": "library",
            "bom-ref": purl,
            "group": organisation.name,
            "name": module.name,
            "version": version,
            "purl": purl,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
    return list(found.values())


def tool(name: str) -> Path:
    """Return a program of the environment of these tools, which the first call makes."""
    home = PLACE / "dependencies"
    if not (home / "complete").is_file():
        run([sys.executable, "-m", "venv", "--clear", str(home)])
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
        run([str(home / "bin" / "python"), "-m", "pip", "install", *quiet, *TOOLS])
        (home / "complete").touch()
    return home / "bin" / name


def run(command: Sequence[str], given: str | None = None) -> str:
    """Return what a command prints; raises with what it says when it fails."""
    ended = subprocess.run(command, input=given, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed:\n{ended.stdout[-1000:]}{ended.stderr[-3000:]}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
