"""Settings of a session that its builder does not have: as spark-submit, ``PYSPARK_SUBMIT_ARGS`` and
spark-defaults.conf give them. A builder's ``spark.jars`` replaces theirs.
"""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path
from typing import Any

from exactly_once import properties


def launched() -> Any:
    """Return the JVM that runs this process's driver, as under spark-submit; None while none does. Starts none."""
    from pyspark import SparkContext

    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def setting(name: str) -> str | None:
    """Return a setting of the session to come, in the order of spark-submit: from the JVM that is there; or else from
    ``PYSPARK_SUBMIT_ARGS``, or from spark-defaults.conf.
    """
    jvm = launched()
    if jvm is not None:
        value = jvm.java.lang.System.getProperty(name)
        return None if value is None else str(value)
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--jars", dest="spark.jars")
    parser.add_argument("--packages", dest="spark.jars.packages")
    parser.add_argument("--driver-class-path", dest="spark.driver.extraClassPath")
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--properties-file", type=Path)
    parser.add_argument("--load-spark-defaults", action="store_true")  # Spark 4's, which may stand beside a file
    given = vars(parser.parse_known_args(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))[0])
    own, both = given["properties_file"], given["load_spark_defaults"]
    in_file = (_properties(_defaults()) if both or not own else {}) | (_properties(own) if own else {})
    return given.get(name) or {**in_file, **dict(pair.partition("=")[::2] for pair in given["conf"])}.get(name)


def _defaults() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME') or _find_spark_home()}/conf"
    return Path(folder) / "spark-defaults.conf"


def _properties(file: Path) -> dict[str, str]:
    text = ""
    with suppress(OSError, UnicodeDecodeError):
        text = file.read_text(encoding="utf-8")
    return {name: value.strip() for _, name, _, value in properties.pairs(text, str(file))}
