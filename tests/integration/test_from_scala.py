"""docs/from-scala.md, its examples as they stand there: by spark-shell, which compiles them, and by spark-sql; and an
application of Java by spark-submit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest

from exactly_once.kafka.connection import Connection
from testkit import oracle, processes
from testkit.broker import create_topic, fresh_name
from testkit.driverless import spark_program
from testkit.java import compiled
from testkit.processes import until
from testkit.stream import PATIENCE_S, ROOT

pytestmark = pytest.mark.long

ROWS = [(f"k{n % 7}", f"v{n}") for n in range(50)]


def example(language: str, connection: Connection, topic: str, data: Path) -> str:
    """The example of the page, for this broker, this topic and this folder."""
    page = (ROOT / "docs" / "from-scala.md").read_text(encoding="utf-8")
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)
    here = {"/data": str(data), "localhost:9092": connection.bootstrap_servers}
    for name in ('"orders_out"', "'orders_out'"):
        here[name] = name.replace("orders_out", topic)
    for name in ('"orders"', "'orders_sql'"):
        here[name] = name[0] + topic + name[0]
    for there, now in here.items():
        found = found.replace(there, now)
    return str(found)


def run_text(program: str, option: str, text: str, folder: Path) -> None:
    """Have a program of Spark's run ``text``."""
    folder.mkdir()
    source = folder / "example.txt"
    source.write_text(text)
    run(program, [option, str(source)], folder)


def run(program: str, arguments: list[str], folder: Path) -> None:
    """Have a program of Spark's run to its end, which nothing of it outlives."""
    started = spark_program(program, arguments, folder / "run")
    try:
        ended = started.wait(2 * PATIENCE_S)  # the Scala compiler, and a whole Spark
        assert ended == 0, (folder / "run" / "log").read_text(errors="replace")[-6000:]
        until("the end of the child", lambda: not processes.of_session(started.pid), 10)
    finally:
        if processes.of_session(started.pid):
            processes.kill_session(started.pid)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with the input that the page reads."""
    (tmp_path / "data" / "in").mkdir(parents=True)
    rows = "".join(json.dumps({"key": k, "value": v}) + "\n" for k, v in ROWS)
    (tmp_path / "data" / "in" / "rows.json").write_text(rows)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("language", "program", "option", "end"),
    [("scala", "spark-shell", "-i", "sys.exit(0)\n"), ("sql", "spark-sql", "-f", "")],
)
def test_an_example_of_the_page_writes_its_rows_once_however_often_it_runs(
    language: str, program: str, option: str, end: str, connection: Connection, data: Path, tmp_path: Path
) -> None:
    """Guards against a page that nobody has tried, and against a driver that needs a Python of its own."""
    topic = create_topic(connection.bootstrap_servers, fresh_name(language), partitions=4)
    text = example(language, connection, topic, data)
    for n in range(2):
        run_text(program, option, text + end, tmp_path / f"run-{n}")
    oracle.assert_settled(connection, topic, [topic])
    oracle.assert_exactly(oracle.read(connection, [topic]), ROWS)


def test_a_compiled_application_of_java_writes_its_rows_once_however_often_it_is_submitted(
    connection: Connection, data: Path, tmp_path: Path
) -> None:
    """Guards against an application without Python whose classes Spark loads in another way than a shell's."""
    topic = create_topic(connection.bootstrap_servers, fresh_name("java"), partitions=4)
    source = ROOT / "tests" / "java" / "application" / "Application.java"
    classes = compiled(source, tmp_path / "classes", *Path(pyspark.__file__).parent.glob("jars/*.jar"))
    jar = tmp_path / "application.jar"
    with ZipFile(jar, "w") as archive:
        for found in classes.rglob("*.class"):
            archive.write(found, found.relative_to(classes))
    arguments = ["--class", "application.Application", str(jar), str(data), connection.bootstrap_servers, topic]
    for n in range(2):
        run("spark-submit", arguments, tmp_path / f"run-{n}")
    oracle.assert_settled(connection, topic, [topic])
    oracle.assert_exactly(oracle.read(connection, [topic]), ROWS)
