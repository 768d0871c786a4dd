"""An output whose package is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest

from exactly_once.errors import ExtraMissing


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("postgres", "psycopg", "postgres"), ("delta", "deltalake", "delta"), ("iceberg", "pyiceberg", "iceberg")],
)
def test_an_output_without_its_package_names_the_extra(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against an on-call engineer who looks for a wrong option."""
    name = f"exactly_once.outputs.{module}"
    for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExtraMissing) as error:
        importlib.import_module(name)
    assert error.value.code == "EO-EXTRA" and f"[{extra}]" in error.value.way_out
