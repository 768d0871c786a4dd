"""The text of a location: read as Hadoop's Path reads it."""

from __future__ import annotations

import pytest

from exactly_once import location
from testkit.grammars import LOCATIONS


@pytest.mark.parametrize(("text", "parts"), LOCATIONS.items())
def test_a_location_is_read_as_hadoops_path_reads_it(text: str, parts: tuple[str, str, str] | None) -> None:
    """Outage: Spark writes its checkpoint to one folder, and the sink reads another, or none."""
    if parts is None:
        with pytest.raises(ValueError):
            location.read(text)
    else:
        assert location.read(text) == parts
        assert location.read(str(location.read(text))) == parts


@pytest.mark.parametrize("text", ["file://data/chk", "file://localhost/data/chk", "file://data"])
def test_a_local_folder_has_no_host(text: str) -> None:
    """Outage: file://data/chk, with a slash too few, is no folder of Hadoop's local file system; Python would read
    /chk."""
    with pytest.raises(ValueError, match="write file:///"):
        location.read(text)
