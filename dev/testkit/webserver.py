"""Dagster as `dagster dev` runs it: code server, daemon and web server of a site."""

from __future__ import annotations

import contextlib
import signal
from typing import Self

import dagster as dg

from dagster_exactly_once.runs.tags import TAG_PID
from exactly_once_local.ports import HOST, free_port
from testkit.client import LOCATION, Client
from testkit.dagster_processes import START_S, DagsterProcesses
from testkit.processes import kill_family, of_session, send, until
from testkit.site import Site


class Dagster(DagsterProcesses, Client):
    """The processes of a site and what a person does in its UI, with the intervals of the sensors as delivered."""

    def __init__(self, site: Site, module: str = "platform_assets.definitions"):
        self.site = site
        self.failpoints = site.folder / "failpoints"
        self.failpoints.mkdir()
        environment = site.env | {
            "DAGSTER_IS_DEV_CLI": "1",
            "EXACTLY_ONCE_SENSORS": "running",
            "EXACTLY_ONCE_FAILPOINTS": str(self.failpoints),
        }
        DagsterProcesses.__init__(self, site.folder, environment, module, LOCATION)
        port = free_port()
        Client.__init__(self, HOST, port)
        web = ["dagster_webserver", "-h", HOST, "-p", str(port), "--live-data-poll-rate", "1000"]
        self.commands["web"] = [*web, "-w", str(self.workspace)]

    def __enter__(self) -> Self:
        try:
            self.start("code")
            self.await_code_server()
            self.start("web")
            self.start("daemon")
            until("the web server", self.answers, START_S, every_s=0.3)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def arm(self, point: str, action: str) -> None:
        """Have whoever comes to ``point`` next do ``action`` there."""
        draft = self.failpoints / ".draft"
        draft.write_text(action)
        draft.rename(self.failpoints / point)

    def reached(self, point: str, timeout_s: float = 60.0) -> None:
        """Wait until somebody is at ``point``."""
        mark = self.failpoints / f"{point}.reached"
        until(f"the failpoint {point}", mark.exists, timeout_s)
        mark.unlink()

    def answers(self) -> bool:
        """Return whether the web server shows the code location."""
        self.check("web")
        with contextlib.suppress(OSError):
            return self.live("flight_delays_stream") is not None and self.loaded()
        return False

    def tags(self, run_id: str) -> dict[str, str]:
        """Return the tags of a run, those that Dagster's pages and API leave out too."""
        with dg.DagsterInstance.from_config(str(self.site.home)) as instance:
            run = instance.get_run_by_id(run_id)
            return {} if run is None else dict(run.tags)

    def pid(self, run_id: str) -> int:
        """Return the process of a run, once it has said which it is."""
        until(f"the process of run {run_id}", lambda: TAG_PID in self.tags(run_id), 60, every_s=0.3)
        return int(self.tags(run_id)[TAG_PID].partition("@")[0])

    def kill_run(self, run_id: str, tree: bool = False) -> None:
        """Kill the process of a run with ``kill -9``.

        With ``tree``, its JVM and Spark's Python processes at the same moment too, as when a machine goes.
        """
        pid = self.pid(run_id)
        assert pid in of_session(self.processes["code"].pid), "not a process of this test"
        if tree:
            kill_family(pid)
        else:
            send([pid], signal.SIGKILL)
