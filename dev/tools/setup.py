"""Install what the project needs into ``.venv`` and the cache folder, once; run by ``dev/tools/setup.sh`` inside
``.venv``, with the name of what is wanted: ``example``, or ``dev``, which has all of it. It runs itself with ``jars``
for the steps that need not wait for all packages.

Every step can be interrupted and run again. Nothing is done when the Python and the files of DEPENDS_ON are those of
the last complete run, and that run installed what is wanted. Standard library only: it runs before anything is
installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "dev")]

from exactly_once import __version__  # noqa: E402
from exactly_once.errors import ExactlyOnceError  # noqa: E402
from exactly_once.sparkenv import jars  # noqa: E402
from exactly_once.sparkenv.java import JavaUnusable, find_java  # noqa: E402

STAMP = PROJECT / ".venv" / "set-up-is-complete"
PIP_LOG = PROJECT / ".run" / "logs" / "pip.log"
STEPS = 3

#: The distributions beside the engine's; their packages are imported from the checkout, too.
OTHERS = ("distributions/dagster-exactly-once", "distributions/exactly-once-local")

#: The releases of everything that pip installs.
CONSTRAINTS = "distributions/constraints.txt"

#: What the jars and the trial of the broker need, and what builds packages: pip installs it first, and the rest beside
#: them.
FIRST = ("--no-compile", "pyspark", "confluent-kafka", "psutil", "hatchling", "setuptools", "wheel")


def _editable(*projects: str) -> tuple[str, ...]:
    return tuple(word for project in projects for word in ("-e", project))


#: What make run, cluster, demo and ui use, of which Python compiles what it imports; and every extra, with what builds
#: and tests. The engine and OTHERS need each other. An environment of its own for each build would take ten seconds.
WANTED = {
    "example": ("--no-build-isolation", "--no-compile", *_editable(".[demo]", *OTHERS), "dagster-webserver"),
    "dev": ("--no-build-isolation", *_editable(".[dev]", *OTHERS)),
}

#: What imports all that the processes of ``make run`` do, and all that each process of ``make test`` does.
IMPORTS = {
    "example": ("-c", "import platform_assets.local.main_job, platform_assets.definitions, pyspark.sql.functions"),
    "dev": ("-m", "pytest", "--collect-only", "--quiet"),
}

#: The wheel that pip builds of PySpark's 450 MB of jars need not be compressed once more.
STORED = PROJECT / "dev" / "tools" / "stored-wheels.cfg"

#: When one of these changes, the set-up is done again.
DEPENDS_ON = (
    *("pyproject.toml", *(f"{folder}/pyproject.toml" for folder in OTHERS), CONSTRAINTS),
    *("exactly_once/sparkenv/ivy.xml", "exactly_once/sparkenv/ivy.sha256"),
)


def main(wanted: str) -> int:
    """Set up what is wanted, a key of WANTED, and return the exit code."""
    began = time.monotonic()
    try:
        find_java()
    except JavaUnusable as missing:
        way_out = missing.way_out[0].lower() + missing.way_out[1:]
        print(f"{missing.what}: {way_out}, and run this again.", file=sys.stderr)
        return 1
    state = fingerprint()
    installed = STAMP.read_text() if STAMP.is_file() else ""
    if installed in (f"{state} {wanted}", f"{state} dev") and jars.is_resolved():
        return 0
    STAMP.unlink(missing_ok=True)
    print("Setting up; this is done once, in some minutes.", flush=True)
    try:
        if code := install_packages(*FIRST):
            return code
        with beside(sys.executable, "-B", __file__, "jars") as others:
            if code := install_packages(*WANTED[wanted]):
                return code
            compile_imports(wanted)
            if code := others.wait():
                return code
    except KeyboardInterrupt:
        print("\nStopped. The downloads are kept: run this again to continue.", file=sys.stderr)
        return 130
    STAMP.write_text(f"{state} {wanted}")
    print(f"Set up in {time.monotonic() - began:.0f} s.")
    return 0


def fingerprint() -> str:
    """Return the state that a complete set-up depends on."""
    digest = hashlib.sha256(f"{sys.version} {PROJECT} {__version__}".encode())
    for name in DEPENDS_ON:
        digest.update((PROJECT / name).read_bytes())
    return digest.hexdigest()


@contextmanager
def beside(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command beside the block; end it when the block does."""
    process = subprocess.Popen(command, cwd=PROJECT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it ends what it started
            process.wait()


def install_packages(*wanted: str) -> int:
    """Step 1: pip with these arguments, and the versions of constraints.txt."""
    environment = {
        **os.environ,
        "PIP_CACHE_DIR": str(jars.cache_folder() / "pip"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "DIST_EXTRA_CONFIG": str(STORED),  # setuptools reads it
    }
    python = [sys.executable, "-m"]
    if subprocess.run([*python, "pip", "--version"], capture_output=True).returncode != 0:  # venv was made half-way
        subprocess.run([*python, "ensurepip"], check=True, capture_output=True)
    PIP_LOG.parent.mkdir(parents=True, exist_ok=True)
    command = [*python, "pip", "install", "--no-input", "-c", CONSTRAINTS, *wanted]
    pip = subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, packages = follow_pip(pip)
    except BaseException:
        pip.terminate()  # nothing of ours goes on after a Ctrl-C
        try:
            pip.wait(10)
        except subprocess.TimeoutExpired:
            pip.kill()
        raise
    if pip.returncode != 0:
        print(f"\npip failed: {said or 'no reason given'} (the whole log is {PIP_LOG})", file=sys.stderr)
        return 1
    if wanted != FIRST:
        done(1, f"{packages} packages in .venv")
    return 0


def follow_pip(pip: subprocess.Popen[str]) -> tuple[str, int]:
    """Show pip's progress until it ends; return its first error, or "", and how many packages it has named."""
    said, seen = "", set[str]()
    assert pip.stdout is not None
    with PIP_LOG.open("w") as log:
        for line in pip.stdout:
            log.write(line)
            log.flush()
            if found := re.match(r"(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9._-]+)", line):
                seen.add(found[1].lower())
                show(1, f"package {len(seen)}: {found[1]}", every=20, count=len(seen))
            elif "Building wheel" in line or line.startswith("Installing collected"):
                show(1, line.strip().rstrip(".").split(":")[0])
            elif line.startswith("ERROR"):
                said = said or line.strip()
    pip.wait()
    return said, len(seen)


def compile_imports(wanted: str) -> None:
    """Let Python compile what is imported later, once and not in several processes at a time."""
    subprocess.run(
        [sys.executable, *IMPORTS[wanted]], cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def jars_and_broker() -> int:
    """Do steps 2 and 3, and return the exit code."""
    try:
        resolve_jars()
        try_broker()
    except ExactlyOnceError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # who runs this says so
    return 0


def resolve_jars() -> None:
    """Step 2: the jars of ivy.xml."""
    jars.resolve(lambda line: show(2, f"jars: {line}", every=10, count=int((re.findall(r"\d+", line) or [0])[0])))
    done(2, f"{len(jars.pinned())} jars, each with the sha256 of ivy.sha256, in {jars.cache_folder()}")


def try_broker() -> None:
    """Step 3: a trial start of the embedded broker, which makes later starts fast."""
    from exactly_once_local.cluster.embedded_broker import prepare

    seconds = prepare(lambda line: show(3, f"the embedded broker: {line}"))
    done(3, f"the embedded broker starts{f' in {seconds:.1f} s' if seconds else ''}")


def show(step: int, text: str, every: int = 1, count: int = 0) -> None:
    """Show progress: one rewritten line on a terminal, some lines in a log."""
    line = f"  {step}/{STEPS} {text}"
    if sys.stdout.isatty():
        print("\r\033[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
    elif count % every == 0 or count == 1:
        print(line, flush=True)


def done(step: int, text: str) -> None:
    """Show the last line of a step, which stays."""
    start = "\r\033[K" if sys.stdout.isatty() else ""
    print(f"{start}  {step}/{STEPS} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(jars_and_broker() if sys.argv[1] == "jars" else main(sys.argv[1]))
