"""Puts the connector, the sink's jar and the jars for s3a:// into a folder: ``preload.py FOLDER``.

A step of deploy/Dockerfile.
"""

import argparse
import shutil
from pathlib import Path

from exactly_once.sparkenv.jars import resolve_configuration, session_jars

#: What Spark needs for s3a://.
S3_JARS = Path(__file__).parent / "s3" / "ivy.xml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for jar in [*session_jars(), *resolve_configuration(S3_JARS, "s3")]:
        shutil.copy(jar, args.folder)


if __name__ == "__main__":
    main()
