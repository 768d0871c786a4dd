"""A SPARK_HOME whose Python workers start fast: the installed PySpark, without the zipped copy of itself.

Spark puts ``python/lib/pyspark.zip`` first on the path of every Python process it starts. Imports from a zip keep no
byte code, so each of the five worker daemons of a streaming query compiles PySpark from its sources again: 2.4 s of
processor time each, against 0.5 s for the same import from the installed package (which is the same code). Only YARN
needs the zip.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from exactly_once.local.jars import cache_folder


def fast_spark_home() -> Path:
    """Return a folder of links to the installed PySpark, made in the cache folder when missing.

    Safe in several processes at once. The folder's name depends on the place and version of PySpark: each environment
    has its own.
    """
    spec = find_spec("pyspark")  # not an import, which would take seconds when the code location loads
    assert spec is not None and spec.origin is not None
    installed = Path(spec.origin).parent
    version = (installed / "version.py").read_bytes()
    name = hashlib.sha256(os.fsencode(installed) + version).hexdigest()[:12]
    home = cache_folder() / f"spark-home-{name}"
    if not (home / "python").is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=home.parent, prefix=".spark-home-"))
        for entry in installed.iterdir():
            if entry.name != "python":
                (made / entry.name).symlink_to(entry)
        (made / "python" / "lib").mkdir(parents=True)
        try:
            made.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return home
