"""Run one job in this process, on the instance of ``$DAGSTER_HOME``: ``python -m platform_assets.launch``, used by the
CLI.

The run is an ordinary Dagster run: `make ui` shows it, with its log, its metadata and its status. It ends with the
process that asked for it: when standard input closes, it is interrupted, as by Ctrl-C.
"""

import argparse
import json
import os
import signal
import sys
import threading

import dagster as dg

from dagster_exactly_once.names import CHECKS_JOB, HANGING_JOB, RECOVERY_JOB, REPAIR_JOB
from platform_assets.constants import CODE_LOCATION, FEED_JOB
from platform_assets.flights.streams import delay_by_hour, flight_delays

#: The jobs that a terminal may run.
JOBS = (
    FEED_JOB,
    flight_delays.spec.job,
    delay_by_hour.spec.job,
    flight_delays.backfill_spec.job,
    RECOVERY_JOB,
    REPAIR_JOB,
    HANGING_JOB,
    CHECKS_JOB,
)

#: The tag that puts a run on the pages of the job that the web server shows.
_REPOSITORY = {".dagster/repository": f"__repository__@{CODE_LOCATION}"}


def job(name: str) -> dg.JobDefinition:
    """Return a job by name, where another process finds it."""
    from platform_assets.definitions import defs

    return defs.resolve_job_def(name)


def _interrupt_when_orphaned() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    """Return 0 when the run succeeded, 1 when it failed or was canceled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--config", type=json.loads, default={}, help="run configuration, JSON")
    parser.add_argument("--tags", type=json.loads, default={}, help="tags of the run, JSON")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits an ignored one
    threading.Thread(target=_interrupt_when_orphaned, daemon=True).start()
    with dg.DagsterInstance.get() as instance:
        result = dg.execute_job(
            dg.build_reconstructable_job("platform_assets.launch", job.__name__, reconstructable_args=(args.job,)),
            instance=instance,
            run_config=args.config,
            tags={**args.tags, **_REPOSITORY},
            raise_on_error=False,
        )
        return 0 if result.success else 1


if __name__ == "__main__":
    sys.exit(main())
