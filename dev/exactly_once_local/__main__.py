"""A broker for a person who has none: ``python -m exactly_once_local``, until Ctrl-C.

Its first start downloads the jars. What is in its folder stays, and the next start finds it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from exactly_once.errors import ExactlyOnceError
from exactly_once.sparkenv.jars import resolve
from exactly_once_local.cluster.embedded_broker import BrokerFailed, EmbeddedBroker
from exactly_once_local.ports import is_free

#: Kafka's usual port.
PORT = 9092

#: Interval of the checks that the broker still runs.
POLL_EVERY_S = 0.5


def main(argv: list[str] | None = None) -> int:
    """Run a broker until a signal ends it.

    Returns
    -------
    int
        0 after Ctrl-C, SIGTERM, or the end of the terminal; 1 when the broker did not start, or ended by itself.
    """
    parser = argparse.ArgumentParser(prog="python -m exactly_once_local", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("broker"), help="folder for the broker's data and logs (default: broker)"
    )
    parser.add_argument(
        "--port", type=int, help=f"port of the broker (default: {PORT}, or any free port when {PORT} is taken)"
    )
    args = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a background job inherits an ignored SIGINT
        signal.signal(number, signal.default_int_handler)
    try:
        resolve(_say)
        port = args.port or (PORT if is_free(PORT) else None)
        _say(f"Kafka starts, with its data in the folder {args.folder}; this takes up to 20 seconds ...")
        with EmbeddedBroker(args.folder, port=port) as broker:
            file = os.path.join(args.folder, "bootstrap.servers")
            _say(f"Kafka runs at {broker.bootstrap_servers}. Its address is also in {file}.")
            _say("Ctrl-C stops it.")
            while broker.pids:
                time.sleep(POLL_EVERY_S)
            raise BrokerFailed("The broker ended by itself", f"Read its log, which ends with\n{broker.log_tail()}")
    except ExactlyOnceError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
