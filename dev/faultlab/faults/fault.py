"""The contract of a fault."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from faultlab.lab import Lab

#: What a fault struck, when there was nothing to strike: no driver was alive at that moment.
NOTHING = "nothing"


class Fault:
    """One fault. The lab makes an object for each step of a plan; ``do`` comes once, ``undo`` once after it.

    Attributes
    ----------
    name : str
        For plans, histories and the command line.
    what : str
        What it is, in a few words, for docs/lab/faults.md.
    at : int
        The process that waits at the step's point of the protocol; 0: none. A fault that strikes one of several
        strikes this one.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    at: int = 0

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        """Return whether this lab has what the fault strikes."""
        return True

    def do(self, lab: Lab, random: Random) -> str:
        """Do it, without waiting for anything slow, and return what it struck; :data:`NOTHING` when nothing was there.

        ``random`` is the step's own: the same numbers for the same seed.
        """
        raise NotImplementedError

    def undo(self, lab: Lab) -> None:
        """Take it back. By default there is nothing to take back."""
