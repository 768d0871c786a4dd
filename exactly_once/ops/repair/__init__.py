"""The way back for a checkpoint with torn files, and for a batch that is to be planned anew.

``files`` reads what stands in the checkpoint, ``verdicts`` judges it against the commit log (pure), ``applying`` does
what was judged, when asked, and keeps a copy and an audit record.
"""

from exactly_once.ops.repair.applying import Repair, examine, repair
from exactly_once.ops.repair.verdicts import Action, Finding

__all__ = ["Action", "Finding", "Repair", "examine", "repair"]
