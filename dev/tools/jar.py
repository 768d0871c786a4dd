"""The jar of the sink, from ``java/``: ``make jar`` builds it, ``make check`` compares it with the sources.

One compiler, pinned: Eclipse's runs on a JRE, and gives the same bytes on every machine and every Java, while each
release of javac gives its own. So the jar is kept in the repository, and anyone can see that the sources give it.
With a JDK, ``check`` also asks javac and the formatter about the sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from exactly_once.kafka import codes  # noqa: E402
from exactly_once.spark.session import JAR  # noqa: E402
from exactly_once.sparkenv.jars import connector_jars, resolve_configuration  # noqa: E402
from exactly_once.sparkenv.java import OLDEST_JAVA, find_java  # noqa: E402

JAVA = PROJECT / "java"
#: Compiled by the tests that run it; formatted as the rest.
TESTS = PROJECT / "tests" / "java"
#: Kafka's error codes, for the tasks.
CODES = JAVA / "exactlyonce" / "errors" / "Codes.java"
SUM = JAR.with_name(JAR.name + ".sha256")
#: Deprecation, unchecked casts, ...: all but jars that the manifest of one of Spark's names, and PySpark lacks.
LINT = "-Xlint:all,-path"
#: The formatter reads Java by javac's own parser.
_EXPORTS = [
    argument
    for package in ("api", "code", "comp", "file", "parser", "processing", "tree", "util", "model")
    for argument in ("--add-exports", f"jdk.compiler/com.sun.tools.javac.{package}=ALL-UNNAMED")
]
#: The first moment that a zip file can say.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def main(arguments: Sequence[str]) -> int:
    """Do ``build``, ``check`` or ``format``."""
    what = arguments[0] if arguments else "build"
    if what == "build":
        if not codes_are_current():
            CODES.write_text(codes_in_java())
        write(build(JAVA))
        return 0
    if what == "format" and (jdk := find_jdk()):
        return formatter(jdk, "--replace").returncode
    if what == "check":
        return check()
    print("Say build, check, or format, which needs a JDK", file=sys.stderr)
    return 2


def build(java: Path) -> bytes:
    """Return the jar of the sources in ``java/``: the same bytes for the same sources, wherever it is called."""
    (compiler,) = resolve_configuration(JAVA / "ivy.xml", "compiler")
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder)
        command = [find_java().executable, "-XX:-UsePerfData", "-jar", str(compiler), "-nowarn", "-proc:none"]
        command += ["-source", str(OLDEST_JAVA), "-target", str(OLDEST_JAVA), "-encoding", "UTF-8", "-g:lines,source"]
        run([*command, "-cp", classpath(), "-d", folder, *map(str, sources(java))])
        services = java / "META-INF" / "services"
        entries = {path.relative_to(java): path for path in services.iterdir()}
        entries |= {path.relative_to(classes): path for path in classes.rglob("*.class")}
        return packed({name.as_posix(): path.read_bytes() for name, path in entries.items()}, classes / "jar")


def codes_in_java() -> str:
    """Return the sets of exactly_once/kafka/codes.py that the tasks need, as a class with long lines."""
    may_pass, ended = codes.MAY_PASS | codes.OF_THE_TRANSACTION | codes.FENCED, codes.ENDED
    return f"""package exactlyonce.errors;

import java.util.Set;

/** Kafka's error codes, from exactly_once/kafka/codes.py, which names each: written by make jar. */
final class Codes {{
    /** Those after which a new attempt, with transactions of its own, may succeed. */
    static final Set<Integer> MAY_PASS = Set.of({", ".join(map(str, sorted(may_pass)))});

    /** Those of a transaction that somebody else has ended. */
    static final Set<Integer> ENDED = Set.of({", ".join(map(str, sorted(ended)))});

    private Codes() {{}}
}}
"""


def codes_are_current() -> bool:
    """Return whether the class is that, whatever lines the formatter has made of it."""
    return "".join(CODES.read_text().split()) == "".join(codes_in_java().split())


def packed(entries: dict[str, bytes], place: Path) -> bytes:
    """Return a zip file of sorted entries, without what depends on the machine: times, rights, a release of zlib."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_STORED) as jar:
        for name in sorted(entries):
            jar.writestr(zipfile.ZipInfo(name, _NO_TIME), entries[name])
    return place.read_bytes()


def write(jar: bytes) -> None:
    """Put the jar and its sum where the wheel takes them from, each whole or not at all."""
    for path, content in ((JAR, jar), (SUM, sum_of(jar))):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(path)
    print(f"{JAR.relative_to(PROJECT)}: {len(jar):,} bytes, sha256 {sum_of(jar).split()[0].decode()}")


def sum_of(jar: bytes) -> bytes:
    """Return the line that ``sha256sum --check`` reads."""
    return f"{hashlib.sha256(jar).hexdigest()}  {JAR.name}\n".encode()


def check() -> int:
    """Compare the jar with the sources; with a JDK, ask javac and the formatter too. Return the exit code."""
    said = []
    if not codes_are_current():
        said.append(f"{CODES.relative_to(PROJECT)} is not what exactly_once/kafka/codes.py gives. Run: make jar")
    jar = build(JAVA)
    if not JAR.is_file() or JAR.read_bytes() != jar or SUM.read_bytes() != sum_of(jar):
        said.append(f"{JAR.relative_to(PROJECT)} is not what java/ gives. Run: make jar")
    if jdk := find_jdk():
        if javac(jdk).returncode:
            said.append("javac finds fault with java/, see above")
        if formatter(jdk, "--dry-run", "--set-exit-if-changed").returncode:
            said.append(f"These files are not formatted. Run: {sys.executable} dev/tools/jar.py format")
    else:
        print("There is no JDK: java/ was compiled, but neither javac nor the formatter has looked at it.")
    print("\n".join(said) or "The jar is what java/ gives.")
    return 1 if said else 0


def javac(jdk: Path) -> subprocess.CompletedProcess[bytes]:
    """Have javac compile the sources, with every warning an error."""
    command = [str(jdk / "javac"), LINT, "-Werror", "-proc:none", "--release", str(OLDEST_JAVA), "-encoding", "UTF-8"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([*command, "-cp", classpath(), "-d", folder, *map(str, sources(JAVA))])


def formatter(jdk: Path, *how: str) -> subprocess.CompletedProcess[bytes]:
    """Run the formatter over the sources."""
    jars = os.pathsep.join(map(str, resolve_configuration(JAVA / "ivy.xml", "formatter")))
    command = [str(jdk / "java"), *_EXPORTS, "-cp", jars, "com.palantir.javaformat.java.Main", "--palantir"]
    return subprocess.run([*command, *how, *map(str, [*sources(JAVA), *sources(TESTS)])])


def sources(java: Path) -> list[Path]:
    """Return the sources in an order that is the same everywhere."""
    return sorted(java.rglob("*.java"))


def classpath() -> str:
    """Return what is compiled against: the jars of PySpark, and the connector's, which bring Kafka's client."""
    import pyspark

    jars: Iterable[Path] = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    return os.pathsep.join([*map(str, sorted(jars)), *connector_jars()])


def find_jdk() -> Path | None:
    """Return the folder of the programs of a JDK: the one that Spark runs on, or the one that the PATH has."""
    found = [Path(find_java().executable).resolve().with_name("javac"), shutil.which("javac")]
    return next((Path(javac).resolve().parent for javac in found if javac and Path(javac).is_file()), None)


def run(command: Sequence[str]) -> None:
    """Run a command that says nothing unless it fails."""
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        raise SystemExit(f"{Path(command[0]).name} failed:\n{ended.stdout[-5000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
