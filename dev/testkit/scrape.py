"""Read the series that a Prometheus endpoint serves."""

from __future__ import annotations

from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """One answer of ``http://localhost:<port>/metrics``."""

    def __init__(self, port: int):
        with urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        self._samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    @property
    def names(self) -> set[str]:
        """The series, by name."""
        return {s.name for s in self._samples}

    def all(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Return the values of a series by its other labels' values, in order of the labels' names."""
        return {
            tuple(v for k, v in sorted(s.labels.items()) if k not in labels): s.value
            for s in self._samples
            if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())
        }

    def one(self, name: str, **labels: str) -> Any:
        """Return the one value with these labels; None when there is none."""
        found = self.all(name, **labels)
        assert len(found) <= 1, found
        return next(iter(found.values()), None)
