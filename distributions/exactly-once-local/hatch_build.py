"""Complete this distribution: add the package, which a checkout has in dev/, and the engine that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

CLIENT = "confluent-kafka>=2.16.1,<2.17"
ENGINE = "pyspark-kafka-exactly-once"
PACKAGE = "exactly_once_local"


class LocalMetadata(MetadataHookInterface):
    """Add the engine to the dependencies, in the version that was released together with this distribution, and the
    client that feeds the broker.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies of ``metadata``, which has the version."""
        metadata["dependencies"] = [CLIENT, f"{ENGINE}=={metadata['version']}"]


class LocalPackage(BuildHookInterface[Any]):
    """Add the package where it is not beside this file, as it is in an unpacked source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name what is included from the checkout; an editable installation copies nothing."""
        here = Path(self.root)
        if version == "editable" or (here / PACKAGE).is_dir():
            return
        build_data["force_include"][str(here.parents[1] / "dev" / PACKAGE)] = PACKAGE
