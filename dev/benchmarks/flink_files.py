"""The files of Flink, fetched into the cache folder once and checked: the distribution from PyPI; its Kafka connector,
and the part of its SQL client that the distribution there lacks, from Maven Central.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from exactly_once.sparkenv.jars import JarsUnusable, cache_folder, resolve_other

#: The newest for which there is a Kafka connector, and that connector.
FLINK, CONNECTOR = "2.2.1", "5.0.0-2.2"

_WHEEL = "74dc5546fbd9add8fbcdf1222a237e09491f9b80296241aef8676ec56f8e686e"
_CONNECTOR_JAR = f"flink/flink-sql-connector-kafka-{CONNECTOR}.jar"
_GATEWAY_JAR = f"flink/flink-sql-gateway-{FLINK}.jar"
_SUMS = {
    _CONNECTOR_JAR: "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
    _GATEWAY_JAR: "fde5f0f6e868c84de01312a4922404f9571c68a6d879e91fc602bbafa5d735aa",
}

#: Of the wheel: the class path of a cluster, and what its SQL client has beside that.
_WANTED = ("pyflink/lib/", "pyflink/opt/")
_CLIENTS = ("flink-sql-client", "flink-sql-gateway", "flink-python")


def classpath(client: bool) -> str:
    """Return the class path of the SQL client, or of the cluster's processes; downloads 320 MB the first time.

    Raises
    ------
    JarsUnusable
        A file could not be fetched, or is not the pinned one.
    """
    connector = cache_folder() / f"flink-connector-{FLINK}-{CONNECTOR}"
    resolve_other(Path(__file__).with_name("ivy-flink.xml"), _SUMS, connector)
    jars = [*_distribution().glob("*.jar"), *(connector / name for name in _SUMS)]
    return ":".join(sorted(str(jar) for jar in jars if client or not jar.name.startswith(_CLIENTS)))


def _distribution() -> Path:
    """Return the folder of the distribution's jars; it appears by one rename after the check."""
    target = cache_folder() / f"flink-{FLINK}"
    if target.is_dir():
        return target
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flink-", dir=cache_folder()) as folder:
        wheel, jars = _download(Path(folder)), Path(folder) / "jars"
        jars.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(_WANTED) and name.endswith(".jar"):
                    with archive.open(name) as packed, (jars / Path(name).name).open("wb") as jar:
                        shutil.copyfileobj(packed, jar)
        jars.rename(target)
    return target


def _download(folder: Path) -> Path:
    name = f"apache-flink-libraries=={FLINK}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", name]
    fetched = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if fetched.returncode != 0 or len(wheels) != 1:
        raise JarsUnusable(f"pip could not download {name}: {fetched.stderr.strip()[-300:]}", "Try again")
    with wheels[0].open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != _WHEEL:
        raise JarsUnusable(f"{wheels[0].name} has the sha256 {found}, pinned is {_WHEEL}", "Do not trust the index")
    return wheels[0]
