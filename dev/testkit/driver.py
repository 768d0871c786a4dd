"""A Spark driver that tests start, command and kill: JSON commands on stdin, JSON answers on stdout.

What takes long runs in a thread of its own, so that ``stop`` can be asked for while ``wait`` waits; all else in the
main thread, one command after the other. When stdin ends (the test is gone), everything ends.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any


def close_callback_server(gateway: Any) -> None:
    """Close py4j's callback server, with its connections: by itself it would wait for the next call of each."""
    closing = threading.Thread(target=gateway.shutdown_callback_server)
    closing.start()
    while closing.is_alive():
        for connection in list(gateway._callback_server.connections):
            with suppress(AttributeError, OSError):  # it is closed by now
                connection.socket.shutdown(socket.SHUT_RDWR)
        closing.join(0.05)


class Driver:
    def __init__(self, settings: dict[str, Any]):
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(settings["master"]).appName("test")
        for name, value in settings["conf"].items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("WARN")
        self.queries: dict[str, Any] = {}
        self.names: dict[str, Any] = {"spark": self.spark}
        self.computing = threading.Event()

    def register(self) -> None:
        import exactly_once

        exactly_once.register(self.spark)

    def start(self, job: dict[str, Any]) -> dict[str, str]:
        df = self._rows(job)
        writer = df.writeStream.outputMode(job["output_mode"])
        if job["participants"] is None:
            writer = writer.format(job["format"]).options(**job["options"])
        else:
            import exactly_once

            options = dict(job["options"])
            checkpoint = options.pop("query.checkpoint", options["checkpointLocation"])
            sink = exactly_once.foreach_batch(options, *(made(p) for p in job["participants"]))
            writer = writer.foreachBatch(sink).option("checkpointLocation", checkpoint)
        if job["trigger"]:
            writer = writer.trigger(**job["trigger"])
        if job["name"]:
            writer = writer.queryName(job["name"])
        query = writer.start()
        self.queries[str(query.runId)] = query
        return {"run": str(query.runId), "query_id": str(query.id)}

    def _rows(self, job: dict[str, Any]) -> Any:
        """Return the rows that a job writes."""
        if job["register"]:
            self.register()
        source = self.spark.readStream.format(job["source"]["format"]).options(**job["source"].get("options", {}))
        if name := job["source"].get("name"):
            source = source.name(name)
        if schema := job["source"].get("schema"):
            source = source.schema(schema)
        df = source.load()
        if job["select"]:
            df = df.selectExpr(*job["select"])
        if job["transform"]:
            module, _, function = job["transform"].partition(":")
            df = getattr(importlib.import_module(module), function)(df, **job["arguments"])
        return df

    def check(self, job: dict[str, Any]) -> float:
        """Ask ``exactly_once.check``; how long it took, in s."""
        import exactly_once

        df, began = self._rows(job), time.monotonic()
        try:
            mode = "append" if job["participants"] is not None else job["output_mode"]
            exactly_once.check(df, job["options"], *(made(p) for p in job["participants"] or ()), output_mode=mode)
        except exactly_once.ExactlyOnceError as e:
            raise ValueError(f"{time.monotonic() - began:.3f} s, {e}") from None
        return time.monotonic() - began

    def wait(self, run: str, seconds: float) -> dict[str, Any]:
        """Wait until the query ends; not by awaitTermination, which raises what we want to hand back as text."""
        query, end = self.queries[run], time.monotonic() + seconds
        while query.isActive and time.monotonic() < end:
            time.sleep(0.05)
        failure = query.exception()
        return {
            "active": query.isActive,
            "failure": told(failure) if failure is not None else None,
        }

    def stop(self, run: str) -> None:
        self.queries[run].stop()

    def compute(self, count: int) -> None:
        """Keep that many threads busy with Python, which hold the interpreter's lock; 0 ends those that are."""
        self.computing.clear()
        self.computing = threading.Event()
        self.computing.set()
        for _ in range(count):
            threading.Thread(target=_count, args=(self.computing,), daemon=True).start()

    def close_callbacks(self) -> None:
        """Close py4j's callback server, with its connections."""
        close_callback_server(self.spark.sparkContext._gateway)

    def heap(self) -> float:
        """Return the used heap of the JVM after a collection, in MiB."""
        jvm = self.spark._jvm
        assert jvm is not None
        memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        memory.gc()
        return float(memory.getHeapMemoryUsage().getUsed()) / 2**20

    def explain(self, run: str) -> str:
        """Every plan of a query."""
        return str(self.queries[run]._jsq.explainInternal(True))

    def level(self, name: str) -> None:
        """Let the JVM log more, or less."""
        self.spark.sparkContext.setLogLevel(name)

    def conf(self, name: str, value: str) -> None:
        self.spark.conf.set(name, value)

    def unset(self, name: str) -> None:
        self.spark.conf.unset(name)

    def state(self, checkpoint: str, options: dict[str, str]) -> list[str]:
        """Return what a query's state store holds after its last batch.

        It is JSON, with ``key.<field>``, ``value.<field>``.
        """
        df = self.spark.read.format("statestore").options(path=checkpoint, **options).load()
        # field by field: the rows of a join's side have one that their schema does not name, and to_json falls over it
        names: list[str] = []
        for column in df.schema:
            fields = getattr(column.dataType, "names", None)
            names += [f"{column.name}.{f}" for f in fields] if fields else [column.name]
        flat = [f"{name} `{name}`" for name in names]
        return [row[0] for row in df.selectExpr(f"to_json(struct({', '.join(flat)}))").collect()]

    def evaluate(self, code: str, result: str) -> Any:
        """Run ``code``, a page's for example, and return what the expression ``result`` says then; names stay."""
        exec(code, self.names)
        return eval(result, self.names)

    def write_batch(
        self, options: dict[str, str], rows: int, parts: int, mode: str, register: bool, columns: list[str]
    ) -> None:
        """Write a batch of the rows ``w-0``, ``w-1``, ..."""
        if register:
            self.register()
        df = self.spark.range(0, rows, 1, parts).selectExpr(*columns)
        df.write.format("kafka_exactly_once").options(**options).mode(mode).save()


def _count(going_on: threading.Event) -> None:
    n = 0
    while going_on.is_set():
        n += 1


def told(failure: Any) -> str:
    """Return what a query ended with, and the causes that Spark keeps below a message that tells nothing."""
    texts = [str(failure)]
    while "EO-" not in texts[-1] and (failure := getattr(failure, "_cause", None)) is not None:
        said = str(failure)  # PySpark's own for the cause of a cause, without the name of its class
        texts.append(f"Caused by: exactlyonce.SinkException: {said}" if said.startswith("EO-") else said)
    return "\n".join(texts)


def made(description: dict[str, Any]) -> Any:
    """Return an object from ``class`` (``module:name``) and its arguments."""
    module, _, name = description["class"].partition(":")
    return getattr(importlib.import_module(module), name)(**{k: v for k, v in description.items() if k != "class"})


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the JVM and the workers print goes to the log
    lock = threading.Lock()

    def answer(body: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(body) + "\n")

    def run(command: dict[str, Any]) -> None:
        try:
            result = getattr(driver, command["do"])(**command.get("arguments", {}))
            answer({"id": command["id"], "result": result})
        except Exception as e:  # the test decides what an error means
            said = str(e) if str(e).startswith("EO-") else f"{type(e).__name__}: {e}"
            answer({"id": command["id"], "error": said})

    driver = Driver(json.loads(sys.stdin.readline()))
    answer({"id": 0, "result": "ready"})
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] in ("wait", "stop"):
            threading.Thread(target=run, args=(command,), daemon=True).start()
        else:
            run(command)
    os._exit(0)


if __name__ == "__main__":
    main()
