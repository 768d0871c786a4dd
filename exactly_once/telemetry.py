"""The variables of OpenTelemetry that metrics and traces share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from exactly_once.errors import InvalidOption

METRICS_PROTOCOL = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TRACES_PROTOCOL = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def first(names: Iterable[str]) -> str:
    """Return the value of the first variable that is set; "" without one."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), "")


def check_protocol(names: Sequence[str]) -> None:
    """Raise InvalidOption, with the first of ``names``, when these variables ask for OTLP other than http/protobuf."""
    protocol = first(names)
    if protocol not in ("", "http/protobuf"):
        raise InvalidOption(f"OTLP with the protocol {protocol!r} is not supported", f"Set {names[0]}=http/protobuf")


def named(resource: Any, name: str) -> dict[str, str]:
    """Return what to merge into the ``resource`` of this process: ``name``, unless the environment has given one."""
    unnamed = str(resource.attributes.get("service.name", "")).startswith("unknown_service")
    return {"service.name": name} if unnamed else {}
