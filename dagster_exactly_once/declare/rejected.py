"""The output of a stream for the records that it rejects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg

from dagster_exactly_once.declare.errors import BadDeclaration

#: Makes the value of a record that is sent again from the value of the rejected one.
Repair = Callable[[bytes | None], str | bytes | None]


@dataclass(frozen=True)
class Rejected:
    """A topic for the records that a stream rejects (:func:`exactly_once.attempt`), an asset beside its outputs.

    Attributes
    ----------
    asset : AssetSpec or str
        A string is the asset's key; its last part is the topic.
    warn_above, error_above : int or None
        The check ``rejected_since_last_look`` warns, and fails, above so many records; None: never.
    repair : callable, optional
        What the job ``<name>_resend`` does to the value of each record before it sends it again. Where it returns None,
        it leaves the record out for good; where it raises, the run sends nothing.
    """

    asset: dg.AssetSpec | str
    warn_above: int | None = 0
    error_above: int | None = None
    repair: Repair | None = None

    def __post_init__(self) -> None:
        for name in ("warn_above", "error_above"):
            if (limit := getattr(self, name)) is not None and limit < 0:
                raise BadDeclaration(f"Rejected({name}={limit}): a number of records is 0 or more")

    def spec(self, stream: str) -> dg.AssetSpec:
        """Return the asset, with a description."""
        asset = self.asset
        made = asset if isinstance(asset, dg.AssetSpec) else dg.AssetSpec(dg.AssetKey.from_user_string(asset))
        return made.replace_attributes(
            description=made.description
            or f"Records that the stream {stream} could not process, byte for byte; headers that begin with "
            "__exactly_once.errors. have the reason and the place in the input."
        )


def rejected_of(said: Rejected | dg.AssetSpec | str | None) -> Rejected | None:
    """Return what a declaration says."""
    return said if said is None or isinstance(said, Rejected) else Rejected(said)
