"""Puts the connector, the sink's jar and the jars for s3a:// into a folder: ``preload.py FOLDER``.

A step of deploy/Dockerfile.
"""

import argparse
import hashlib
import shutil
from pathlib import Path

from exactly_once.local.jars import cache_folder, resolve_other, session_jars

S3 = Path(__file__).parent / "s3"


def s3_jars() -> list[Path]:
    """Return the jars of ``s3/ivy.xml`` (what Spark needs for s3a://), resolved into the cache folder and checked."""
    module, pinned = S3 / "ivy.xml", S3 / "ivy.sha256"
    sums = {name: digest for digest, name in map(str.split, pinned.read_text().splitlines())}
    key = hashlib.sha256(module.read_bytes() + pinned.read_bytes()).hexdigest()[:16]
    folder = cache_folder() / "jars" / f"s3-{key}"
    resolve_other(module, sums, folder)
    return [folder / name for name in sums]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for jar in [*session_jars(), *s3_jars()]:
        shutil.copy(jar, args.folder)


if __name__ == "__main__":
    main()
