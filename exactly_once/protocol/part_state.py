"""The states of one part of a batch, in any participant."""

from __future__ import annotations

from enum import StrEnum


class PartState(StrEnum):
    """A part's state. ``COMMITTED`` and ``LOST`` are final: what comes again is another part."""

    BEGUN = "begun"
    """A task writes it."""

    PREPARED = "prepared"
    """It is durable and not visible; its handle is on the way to the driver."""

    DECIDED = "decided"
    """The commit log names it: it will be committed, whoever does it."""

    COMMITTED = "committed"
    """Readers see it."""

    LOST = "lost"
    """It was rolled back after its decision; the next start writes its rows again, as a part of another name."""

    ABORTED = "aborted"
    """It was rolled back without a decision; the batch is run again. If a time-out did it while the decision was on its
    way to the log, the part is lost once the decision is there.
    """
