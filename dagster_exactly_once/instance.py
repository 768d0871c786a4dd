"""Write the settings that a Dagster instance with streams should have: ``python -m dagster_exactly_once.instance``.

It writes ``dagster.yaml`` into ``$DAGSTER_HOME``, and never over another one.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def settings() -> str:
    """Return the text of ``dagster.yaml``, beside this module."""
    return Path(__file__).with_name("dagster.yaml").read_text(encoding="utf-8")


def write_settings(home: Path) -> bool:
    """Write ``dagster.yaml`` into ``home``, which is made when missing; returns False when another one is there."""
    target = home / "dagster.yaml"
    if target.is_file():
        return target.read_text(encoding="utf-8") == settings()
    home.mkdir(parents=True, exist_ok=True)
    target.write_text(settings(), encoding="utf-8")
    return True


def main(argv: list[str] | None = None) -> int:
    """Return 0 when the settings are there, 1 when the instance has others."""
    parser = argparse.ArgumentParser(prog="python -m dagster_exactly_once.instance", description=__doc__)
    parser.add_argument("home", type=Path, nargs="?", help="the folder of the instance ($DAGSTER_HOME)")
    parser.add_argument("--print", action="store_true", help="print the settings, and write nothing")
    args = parser.parse_args(argv)
    if args.print:
        print(settings(), end="")
        return 0
    home = args.home or (Path(os.environ["DAGSTER_HOME"]) if os.environ.get("DAGSTER_HOME") else None)
    if home is None:
        parser.error("set DAGSTER_HOME, or name the folder of the instance")
    target = home.absolute() / "dagster.yaml"
    if not write_settings(home):
        print(
            f"{target} already has settings, and was not changed. Add the settings that streams need; python -m "
            "dagster_exactly_once.instance --print shows them with comments",
            file=sys.stderr,
        )
        return 1
    print(f"The settings are in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
