"""The pictures of the documentation: what each of them shows, and whether that is what the pages show today.

``EXACTLY_ONCE_SCREENSHOTS=docs/images`` makes the browser tests take them anew. ``pictures.json`` beside them says what
was on the page when each was taken; ``tests/lint/docs/test_pictures.py`` compares that with :data:`PICTURES`, whose
words come from the code.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from dagster_exactly_once.checks.verified import VERIFIED
from dagster_exactly_once.names import ALL_STREAMS, RECOVERY_JOB, SUCCESSOR_JOB
from dagster_exactly_once.sensors.observation import HEALTH
from platform_assets.constants import FLIGHT_DELAYS, FLIGHTS
from platform_assets.flights.names import FLIGHT_DELAYS_BY_DAY, STREAM_JOB, TRANSACTIONS
from testkit.shop import DEAD, UNREADABLE

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
LIST = "pictures.json"

#: The option of the run that fails in the pictures, which every start refuses.
REFUSED = "EO-OPTION"

#: The words that a page must show when its picture is taken; a name that changes makes the picture out of date.
PICTURES: dict[str, tuple[str, ...]] = {
    "launchpad": (STREAM_JOB, "report_interval_s"),
    "sensor": ("exactly_once_run_failure", RECOVERY_JOB),
    "recovery": (RECOVERY_JOB, "inspect", "complete"),  # Dagster cuts the names of short steps
    "transactions": (TRANSACTIONS, "sensor exactly_once_run_failure"),
    "backfill-launch": (FLIGHT_DELAYS_BY_DAY, "Launch backfill"),
    "backfill": (FLIGHT_DELAYS_BY_DAY, "records_written"),
    "checks": (FLIGHT_DELAYS, HEALTH, "no_duplicates_and_no_loss", VERIFIED),
    "automation": (
        "exactly_once_checkpoint_progress",
        "exactly_once_liveness",
        "exactly_once_run_failure",
        "exactly_once_stale_transactions",
    ),
    "asset": (FLIGHT_DELAYS, "commit_duration_ms"),
    "run": (STREAM_JOB, "records committed in"),
    "runs": (STREAM_JOB, "Canceled", "Failure"),
    "lineage": (FLIGHTS, FLIGHT_DELAYS),
    "failed-run": (STREAM_JOB, REFUSED),
    "red-check": (FLIGHT_DELAYS, HEALTH, REFUSED),
    "dead-letters": (DEAD, "dead_letters_since_last_look"),
    "rejected": (UNREADABLE, "rejected_since_last_look"),
    "table": ("lake", "Row count", "records_committed"),
    "successor": (SUCCESSOR_JOB, "Launch the new stream: it begins there."),
    "same-as-blue": ("paid_shadow", "same_as_blue"),
    "all-streams": (ALL_STREAMS, "flight_delays", "delay_by_hour"),
}


def taken(folder: Path, name: str) -> None:
    """Write down what the picture ``name`` in ``folder`` shows."""
    listed = read(folder)
    listed[name] = {"shows": list(PICTURES[name]), "dagster": version("dagster"), "sha256": digest(folder, name)}
    text = json.dumps(dict(sorted(listed.items())), indent=1)
    (folder / LIST).write_text(text + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, dict[str, object]]:
    """Return what is written down about the pictures in ``folder``."""
    path = folder / LIST
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def digest(folder: Path, name: str) -> str:
    """Return the SHA-256 of a picture's file."""
    return hashlib.sha256((folder / f"{name}.png").read_bytes()).hexdigest()
