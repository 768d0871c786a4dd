"""The jars of ``ivy.xml``, resolved once into the cache folder by the Ivy that PySpark bundles, and checked.

Safe in any number of processes at once, and when killed half-way. After a change of ``ivy.xml``,
``python -m exactly_once.sparkenv.jars`` rewrites ``ivy.sha256``; with the paths of other Ivy files, the sums beside
each.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from exactly_once.connector import cache_folder as cache_folder  # for whoever else keeps files there
from exactly_once.errors import ExactlyOnceError
from exactly_once.spark.session import JAR, installed_pyspark
from exactly_once.sparkenv.java import find_java

Progress = Callable[[str], None]

# The default repository of Ivy's Maven resolver is Maven Central; a company's mirror: EXACTLY_ONCE_IVY_SETTINGS.
# Without its checksums, half of the requests are left: the pinned sha256 of each jar is checked at the end.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" checksums=""/></resolvers>
</ivysettings>
"""
#: The project's Ivy file; the sums of its jars are beside it.
_IVY = Path(__file__).with_name("ivy.xml")
#: List of connectors for releases of PySpark that the one of ``ivy.xml`` does not serve.
_CONNECTORS = Path(__file__).with_name("connectors.xml")


class JarsUnusable(ExactlyOnceError):
    """Ivy could not resolve the jars, or a jar is not the pinned one."""

    code = "EO-JARS"
    default_safe = "Nothing was started"


def connector_jars(spark: str | None = None) -> list[str]:
    """Return Spark's Kafka connector as paths for ``spark.jars``, for a release of PySpark, by default the one that is
    installed. Resolves missing jars.
    """
    minor = ".".join((spark or installed_pyspark()).split(".")[:2])
    if any(name.startswith(f"{minor}/") for name in _sums(_CONNECTORS.with_suffix(".sha256"))):
        return [str(jar) for jar in resolve_configuration(_CONNECTORS, minor)]
    return [str(resolve() / name) for name in _names("connector")]


def session_jars() -> list[str]:
    """Return what a session of this repository has in ``spark.jars``: the connector, and the sink's own jar."""
    return [*connector_jars(), str(JAR)]


def broker_classpath() -> str:
    """Return the class path of the embedded broker. Resolves missing jars."""
    return os.pathsep.join(str(resolve() / name) for name in _names("broker"))


def resolve(progress: Progress | None = None) -> Path:
    """Return the folder with ``connector/*.jar`` and ``broker/*.jar``, complete and checked: after half a minute once,
    and a millisecond after that. ``progress`` is called with each step, in words. Raise JarsUnusable, which names the
    jar that Ivy cannot resolve or whose sha256 is not the pinned one, or JavaUnusable.
    """
    folder = _folder()
    resolve_other(_IVY, pinned(), folder, ("connector", "broker"), progress)
    return folder


def is_resolved() -> bool:
    """Return whether :func:`resolve` has nothing to do."""
    return _is_whole(_folder(), pinned())


def lock(module: Path | None = None, progress: Progress | None = None) -> Path:
    """Write the sums of the jars that an Ivy file, by default ``ivy.xml``, resolves to now; return their path."""
    say, module = progress or (lambda line: None), module or _IVY
    target = module.with_suffix(".sha256")
    configurations = [str(conf.get("name")) for conf in ElementTree.parse(module).iter("conf")]
    with (
        locked(cache_folder() / "jars.lock", say),
        _retrieved(say, None, module, configurations) as fresh,
    ):
        jars = sorted(p for c in configurations for p in (fresh / c).glob("*.jar"))
        target.write_text("".join(f"{_sha256(jar)}  {jar.relative_to(fresh)}\n" for jar in jars))
    return target


def resolve_configuration(module: Path, configuration: str) -> list[Path]:
    """Resolve one configuration of another Ivy file, checked by the sums beside it (:func:`lock`); return its jars.
    Raise JarsUnusable or JavaUnusable.
    """
    pinned_in = module.with_suffix(".sha256")
    sums = {name: digest for name, digest in _sums(pinned_in).items() if name.startswith(f"{configuration}/")}
    if not sums:
        known = sorted({name.split("/")[0] for name in _sums(pinned_in)})
        raise JarsUnusable(f"{pinned_in} has no configuration {configuration!r}", f"Name one of {', '.join(known)}")
    key = hashlib.sha256(repr(sorted(sums.items())).encode()).hexdigest()[:16]
    folder = cache_folder() / "jars" / f"{configuration}-{key}"
    resolve_other(module, sums, folder)
    return [folder / name for name in sums]


def resolve_other(
    module: Path,
    sums: Mapping[str, str],
    target: Path,
    configurations: Sequence[str] = (),
    progress: Progress | None = None,
) -> None:
    """Resolve an Ivy file into ``target``, which appears complete and checked, or not at all. ``sums`` has the sha256
    of every jar by ``configuration/name.jar``; ``configurations`` are by default those in it. Raise JarsUnusable or
    JavaUnusable.
    """
    if _is_whole(target, sums):
        return
    say = progress or (lambda line: None)
    configurations = configurations or sorted({name.split("/")[0] for name in sums})
    with locked(cache_folder() / "jars.lock", say):
        if _is_whole(target, sums):  # another process was faster
            return
        with _retrieved(say, len(sums), module, configurations) as fresh:
            _verify(fresh, sums, configurations)
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(target)


def _is_whole(folder: Path, sums: Mapping[str, str]) -> bool:
    # the folder appears by one rename after the check, so a look at the names suffices: a cleaner may remove a jar
    return all((folder / name).is_file() for name in sums)


def pinned() -> dict[str, str]:
    """Return the sha256 of every jar by ``configuration/name.jar``, from a file in the format of sha256sum."""
    return _sums(_IVY.with_suffix(".sha256"))


def _sums(path: Path) -> dict[str, str]:
    return {name: digest for digest, name in (line.split() for line in path.read_text().splitlines() if line.strip())}


def _names(configuration: str) -> list[str]:
    return [name for name in pinned() if name.startswith(configuration + "/")]


def _folder() -> Path:
    key = hashlib.sha256(_IVY.read_bytes() + _IVY.with_suffix(".sha256").read_bytes()).hexdigest()[:16]
    return cache_folder() / "jars" / key


def _verify(folder: Path, sums: Mapping[str, str], configurations: Sequence[str]) -> None:
    found = {str(p.relative_to(folder)): _sha256(p) for c in configurations for p in (folder / c).glob("*.jar")}
    wrong = sorted(n for n in found if n in sums and found[n] != sums[n])
    if wrong:
        raise JarsUnusable(
            f"{wrong[0]} has the sha256 {found[wrong[0]]}, but ivy.sha256 pins {sums[wrong[0]]}",
            f"Remove {cache_folder() / 'ivy'} and try again; if the error repeats, do not trust the jar's repository",
        )
    if found.keys() != sums.keys():
        odd = sorted(found.keys() ^ sums.keys())[0]
        raise JarsUnusable(
            f"ivy.xml and ivy.sha256 disagree about {odd}", "Restore both from the repository, or run: make lock-jars"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path: Path, say: Progress, what: str = "resolves the jars") -> Iterator[None]:
    """Hold a lock that the system releases when this process dies, however it dies; its holder does ``what``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that {what}")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _retrieved(say: Progress, total: int | None, module: Path, configurations: Sequence[str]) -> Iterator[Path]:
    """Yield a folder beside the final one with the jars for ``module``; remove it at the end unless it was renamed."""
    cache = cache_folder()
    for left_over in cache.glob("retrieving-*"):  # a process that was killed left it: we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix="retrieving-", dir=cache))
    try:
        own_settings = os.environ.get("EXACTLY_ONCE_IVY_SETTINGS")
        settings = Path(own_settings) if own_settings else staging / "ivysettings.xml"
        if not own_settings:
            settings.write_text(_SETTINGS)
        # Ivy's cache keeps the downloads: a second try continues where a lost connection ended the first.
        command = _command(settings, staging, cache, module, configurations)
        if not _ivy(command, cache, say, total):
            say("not complete: trying once more")
            if not _ivy(command, cache, say, total):
                log = cache / "ivy.log"
                raise JarsUnusable(
                    f"Ivy could not resolve {module}: {_reason(log.read_text(errors='replace'))}",
                    "Check the connection to Maven Central (proxy: JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=...; mirror: "
                    f"EXACTLY_ONCE_IVY_SETTINGS=<an Ivy settings file>); the whole log is {log}",
                )
        yield staging / "jars"
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _command(settings: Path, staging: Path, cache: Path, module: Path, configurations: Sequence[str]) -> list[Any]:
    return [
        find_java().executable,
        "-XX:-UsePerfData",  # its files are in the system's temporary folder
        f"-Djava.io.tmpdir={staging}",
        f"-Divy.default.ivy.user.dir={cache / 'ivy'}",
        *("-jar", _ivy_jar(), "-settings", settings, "-ivy", module, "-cache", cache / "ivy"),
        *("-types", "jar", "bundle", "-confs", *configurations),
        *("-retrieve", f"{staging}/jars/[conf]/[artifact]-[revision].[ext]"),
    ]


def _ivy(command: list[Any], cache: Path, say: Progress, total: int | None) -> bool:
    modules = downloads = 0
    of = f" of {total}" if total else ""
    with (cache / "ivy.log").open("w") as log:
        ivy = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert ivy.stdout is not None
        try:
            for line in ivy.stdout:
                log.write(line)
                if line.startswith("\tfound "):
                    modules += 1
                    say(f"looking up {modules}{of}: {line.split()[1].split('#')[-1].split(';')[0]}")
                elif "[SUCCESSFUL ]" in line:
                    downloads += 1
                    say(f"downloaded {downloads}{of}: {line.split('!')[-1].split('.jar')[0]}")
        finally:
            if sys.exc_info()[0] is not None:
                ivy.kill()
            ivy.wait()
    return ivy.returncode == 0


def _reason(log: str) -> str:
    found = re.findall(
        r"(?:UNRESOLVED DEPENDENCY|FAILED DOWNLOAD|\[FAILED +\]|Server access error)[^\n]*|:: [^\n]*: not found", log
    )
    return found[0].strip(": ") if found else (log.strip().splitlines() or ["no output"])[-1]


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsUnusable(
            "PySpark is not installed in this Python", f"Run: {sys.executable} -m pip install pyspark==4.2.*"
        )
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarsUnusable(
            f"The PySpark at {spec.origin} has no Ivy in its jars folder", "Install the pyspark package of PyPI"
        )
    return found[-1]


if __name__ == "__main__":
    for ivy_file in map(Path, sys.argv[1:] or [str(_IVY)]):
        print(lock(ivy_file, lambda line: print(line, flush=True)))
