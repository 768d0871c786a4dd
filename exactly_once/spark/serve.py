"""The coordinators in a process of their own, a child of the driver's JVM: ``python -m exactly_once.spark.serve``.

For a driver without Python: Spark Connect's server, ``spark-submit`` of Scala or Java, spark-sql. A request is a line
``<number> <JSON>`` on standard input, its answer a line with the same number on standard output. The process ends when
its input does, so with its JVM, however that ends; what a call was doing then, the next start brings to its end.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterable
from typing import TextIO

from exactly_once.spark.jvm import Coordinators


def serve(requests: Iterable[str], answers: TextIO) -> None:
    """Answer each of ``requests`` in a thread of its own: a call of one query must not wait for another's."""
    coordinators, writing = Coordinators(), threading.Lock()

    def answer(number: str, request: str) -> None:
        said = coordinators.call(request)
        with writing:
            answers.write(f"{number} {said}\n")
            answers.flush()

    for line in requests:
        number, _, request = line.rstrip("\n").partition(" ")
        threading.Thread(target=answer, args=(number, request), daemon=True).start()


def main() -> None:
    """Serve the JVM that has started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # by Ctrl-C, spark-shell and spark-sql cancel a job and go on
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library that prints must not write between the answers
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(open(0, encoding="utf-8", closefd=False), answers)  # noqa: SIM115
    os._exit(0)  # no call is waited for whose JVM is gone


if __name__ == "__main__":
    main()
