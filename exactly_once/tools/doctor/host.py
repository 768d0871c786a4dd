"""The doctor's verdicts on a machine and on a checkpoint: pure, from facts.

Those on a cluster are in :mod:`.cluster`, those on rights in :mod:`.rights`; :mod:`.probes` gathers the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement

from exactly_once.checkpoint import OR_ELSEWHERE, Checkpoint, shown
from exactly_once.connector import coordinate, unusable, version_of
from exactly_once.errors import ExactlyOnceError
from exactly_once.location import is_on
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, Thresholds
from exactly_once.tools.diagnosis.registry import SYMPTOMS

#: The oldest Java of Spark 4, and of the sink's jar.
OLDEST_JAVA = 17

#: The oldest Python of this package.
OLDEST_PYTHON = (3, 11)

#: Packages that are always shown; others only when something is wrong with them.
SHOWN = ("pyspark", "pyarrow", "kafka-python")

#: Free space below which a checkpoint's next files may be cut off.
LEAST_FREE_BYTES = 1024**3

#: File systems that are gone after a restart of the machine.
_IN_MEMORY = ("tmpfs", "ramfs")

#: The symptoms of a checkpoint that one look shows.
_OF_CHECKPOINT = (
    "HEALTH-CHECKPOINT-TORN",
    "HEALTH-CHECKPOINT-FOREIGN",
    "HEALTH-CHECKPOINT-LOST",
    "HEALTH-CHECKPOINT-AHEAD",
)

#: The codes: the checks that each is about, and what is wrong; :class:`DoctorCheck` has those of the other checks.
DOCTOR_CODES: dict[str, tuple[tuple[str, ...], str]] = {
    "DOCTOR-VERSION": (
        ("Python", "Java", "connector", "the sink's jar"),
        "Python, Java, a package, Spark's connector or the sink's jar is missing or does not fit.",
    ),
    "DOCTOR-CHECKPOINT": (("checkpoint",), "There is no checkpoint."),
    "DOCTOR-PLACE": (("checkpoint's place",), "The checkpoint may not be written, be lost or torn."),
    "DOCTOR-BROKER": (("broker", "bootstrap.servers"), "A broker is silent."),
    "DOCTOR-LEVEL": (("broker's level",), "The brokers are too old."),
    "DOCTOR-CLOCK": (("clock",), "This host's clock is not the brokers'."),
    "DOCTOR-TIMEOUT": (("transaction timeout",), "The brokers allow only shorter transactions."),
    "DOCTOR-REPLICATION": (
        ("commit log", "new topics", "leader election"),
        "A failed broker loses records, or stops writes.",
    ),
    "DOCTOR-LOG": (("commit log's settings",), "The commit log may lose decisions."),
    "DOCTOR-SIZE": (("message size",), "The brokers refuse large records or decisions."),
    "DOCTOR-RIGHTS": (("rights",), "A right or a topic is missing."),
    "DOCTOR-TRANSACTIONS": (("transactions",), "Some sinks with open transactions were not examined."),
    "DOCTOR-NO-ANSWER": ((), "A question failed, with the code in the line."),
}
_CODES = {check: code for code, (checks, _) in DOCTOR_CODES.items() for check in checks}


@dataclass(frozen=True)
class DoctorCheck:
    """A check by its name, which makes its lines; ``state`` begins the sentence of each."""

    name: str
    state: str = ""

    def ok(self, sentence: str = "") -> Diagnosis:
        """Make the line of a check that finds all as it should be."""
        return self._line(Severity.OK, sentence)

    def warn(self, sentence: str, remedy: str) -> Diagnosis:
        """Make a line for what works, and what something that may happen would stop, or make mislead its operators."""
        return self._line(Severity.WARN, sentence, remedy)

    def wrong(self, sentence: str, remedy: str) -> Diagnosis:
        """Make a line for what must be changed: a stream cannot run, or does not keep its promise."""
        return self._line(Severity.ERROR, sentence, remedy)

    def _line(self, severity: Severity, sentence: str, remedy: str = "") -> Diagnosis:
        topic = self.name.startswith(("topic ", "__"))
        code = _CODES.get(self.name, "DOCTOR-REPLICATION" if topic else "DOCTOR-VERSION")
        return Diagnosis(code, severity, self.name, f"{self.state}{sentence}", remedy)


def not_answered(check: str, e: ExactlyOnceError) -> Diagnosis:
    """Make the line of a check whose question failed."""
    return Diagnosis("DOCTOR-NO-ANSWER", Severity.ERROR, check, f"{e.code}: {e.what}", e.way_out)


# -- versions ----------------------------------------------------------------------------------------------------------


def judge_python(version: tuple[int, int, int]) -> Diagnosis:
    check = DoctorCheck("Python", f"Python {'.'.join(map(str, version))}")
    if version[:2] < OLDEST_PYTHON:
        return check.wrong(" is too old", f"Use Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return check.ok()


def java_major(said: str) -> int | None:
    """Return the major version in what ``java -version`` says; None when there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', said)  # Java 8 calls itself 1.8
    return int(found[1]) if found else None


def judge_java(executable: str | None, major: int | None) -> Diagnosis:
    """Judge the ``java`` of ``JAVA_HOME`` or of the ``PATH``, None when there is none."""
    check, install = DoctorCheck("Java"), f"Install Java {OLDEST_JAVA} or newer, or set JAVA_HOME to one"
    if executable is None or major is None:
        found = "No Java was found" if executable is None else f"{executable} does not report its version"
        return check.warn(f"{found}: Spark and the embedded broker do not start on this host", install)
    if major < OLDEST_JAVA:
        return check.wrong(f"{executable} is Java {major}: Spark does not start with it", install)
    return check.ok(f"Java {major}, {executable}")


def judge_packages(required: Sequence[str], version_of: Callable[[str], str | None]) -> list[Diagnosis]:
    """Judge the installed versions.

    Parameters
    ----------
    required : sequence of str
        The requirements of this package's metadata; those of extras are left out.
    version_of : callable
        Package -> installed version; None when it is not installed.
    """
    lines = []
    for requirement in map(Requirement, required):
        if requirement.marker is None:
            line = _package(requirement, version_of(requirement.name))
            if requirement.name in SHOWN or line.severity is not Severity.OK:
                lines.append(line)
    return lines


def judge_connector(connectors: Sequence[str], spark: str | None) -> list[Diagnosis]:
    """Judge the Kafka connectors on this host (:func:`exactly_once.connector.found_on_this_host`), for this version of
    Spark.
    """
    if spark is None:  # the line of the package says it
        return []
    check, add = DoctorCheck("connector"), f"Start sessions with spark.jars.packages={coordinate(spark)}"
    if not connectors:
        missing = "Spark's Kafka connector was not found on this host: only a session that names the jar can read Kafka"
        return [check.warn(missing, add)]
    usable = [text for text in connectors if unusable(text, spark) is None]
    if not usable:
        return [
            check.wrong(f"The Kafka connector {connectors[0]} is built for another Spark version than {spark}", add)
        ]
    fitting = [_minor(spark), _minor(version_of(coordinate(spark)))]
    best = next((text for text in usable if _minor(version_of(text)) in fitting), None)
    if best is None:
        version = version_of(usable[0])
        return [check.warn(f"Spark's Kafka connector is {version}, and Spark is {spark} ({usable[0]})", add)]
    version = version_of(best)
    serves = f", which serves Spark {spark}" if _minor(version) != _minor(spark) else ""
    return [check.ok(f"Spark's Kafka connector {version}{serves}, {best}")]


def _minor(release: str | None) -> list[str]:
    return (release or "").split(".")[:2]


def judge_jar(path: str, sums: tuple[str, str] | None, version: str) -> Diagnosis:
    """Judge the sink's own jar, which is the same for every Spark.

    Parameters
    ----------
    sums : (str, str) or None
        The sha256 of the file, and the one that it was published with; None when one of the files cannot be read.
    version : str
        Of this package.
    """
    check, again = (
        DoctorCheck("the sink's jar", path),
        "Install this package again (pip install --force-reinstall --no-deps)",
    )
    if sums is None:
        unread = ", or the checksum file beside it, cannot be read: no session can use format('kafka_exactly_once')"
        return check.wrong(unread, again)
    if sums[0] != sums[1]:
        return check.wrong(f" is not the jar of this package, version {version}: its sha256 is {sums[0]}", again)
    return check.ok(f" has the sha256 of the jar of version {version}")


def _package(requirement: Requirement, version: str | None) -> Diagnosis:
    check, bounds = DoctorCheck(requirement.name, requirement.name), str(requirement.specifier)
    way_out = f"Install {requirement.name} {bounds}"
    if version is None:
        return check.wrong(" is not installed", way_out)
    if not requirement.specifier.contains(version, prereleases=True):
        return check.wrong(f" {version} is not one of the tested versions {bounds}", way_out)
    return check.ok(f" {version}")


# -- the checkpoint ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointPlace:
    """The kind of place where a checkpoint is.

    Attributes
    ----------
    kind : str
        The file system as pyarrow names it: local, s3, hdfs, ...
    mount : str
        For a local one, the type of the mounted file system (ext4, nfs4, ...); "" when unknown.
    writable : bool or None
        Whether this process may write there; None when only a write would tell.
    free : int or None
        Bytes; None when unknown.
    """

    kind: str
    mount: str = ""
    writable: bool | None = None
    free: int | None = None


def judge_checkpoint(facts: SinkFacts, place: CheckpointPlace) -> list[Diagnosis]:
    """Judge the checkpoint of ``facts``, which could be read, and its place."""
    assert facts.checkpoint is not None
    wrong = [d for code in _OF_CHECKPOINT for d in SYMPTOMS[code].find(facts, Thresholds())]
    return [*(wrong or [_content(facts.checkpoint)]), _place(facts.checkpoint.location, place)]


def _content(checkpoint: Checkpoint) -> Diagnosis:
    check = DoctorCheck("checkpoint")
    if checkpoint.query_id is None:
        return check.warn(
            f"There is no checkpoint at {shown(checkpoint.location)}",
            "No action is needed if the stream has never started; otherwise correct the location"
            + (OR_ELSEWHERE if is_on(checkpoint.location, "") else ""),
        )
    last = "no batch" if checkpoint.last_commit is None else f"batch {checkpoint.last_commit} committed"
    under_way = "" if checkpoint.in_flight is None else f", batch {checkpoint.in_flight} in flight"
    return check.ok(f"The checkpoint of query {checkpoint.query_id} is readable: {last}{under_way}")


def _place(location: str, place: CheckpointPlace) -> Diagnosis:
    check = DoctorCheck("checkpoint's place")
    kind = f"a {place.kind} file system{f' ({place.mount})' if place.mount else ''}"
    if place.writable is False:
        return check.wrong(
            f"This user may not write to {location}, on {kind}",
            f"Grant this user write access to {location}, or run exactly-once doctor as the stream's user",
        )
    if place.mount in _IN_MEMORY:
        gone = "it is gone after a restart of the machine, and the sink then refuses to start (EO-REWOUND)"
        return check.warn(f"{location} is on {kind}: {gone}", "Put the checkpoint on a disk")
    free = "" if place.free is None else f", {place.free / 1024**3:,.1f} GiB free"
    if place.free is not None and place.free < LEAST_FREE_BYTES:
        tears = f"{location} is on {kind}{free}: a full disk tears the checkpoint's files"
        return check.warn(tears, "Free space on the disk")
    may = "writable" if place.writable else "only an attempt to write can show whether it is writable"
    return check.ok(f"{location} is on {kind}, {may}{free}")
