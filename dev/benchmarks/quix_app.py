"""One Quix Streams process: run by the Python of its own environment, with one JSON object of settings as argument.

Imports nothing of this project.
"""

from __future__ import annotations

import json
import sys

from quixstreams import Application


def main() -> None:
    """Run until a signal, or until nothing was read for ``idle_s``."""
    settings = json.loads(sys.argv[1])
    app = Application(
        broker_address=settings["bootstrap_servers"],
        consumer_group=settings["group"],
        auto_offset_reset="earliest",
        auto_create_topics=False,
        processing_guarantee="exactly-once",
        commit_interval=settings["interval_s"],
        producer_extra_config=settings["producer"],
        loglevel="WARNING",
    )
    kind = "json" if settings["workload"] == "json" else "bytes"
    source = app.topic(settings["source"], key_deserializer="bytes", value_deserializer=kind)
    out = app.topic(settings["out"], key_serializer="bytes", value_serializer=kind)
    rows = app.dataframe(source)
    if kind == "json":
        rows = rows.filter(lambda value: value["amount"] >= settings["least_amount"])
        rows = rows.apply(lambda value: {name: value[name] for name in ("id", "amount", "currency")})
    rows.to_topic(out)
    app.run(timeout=settings["idle_s"], collect=False)


if __name__ == "__main__":
    main()
