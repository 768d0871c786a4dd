"""Repair of a checkpoint with torn files, or with a batch that Spark should plan again.

``files`` reads the checkpoint, ``verdicts`` judges it against the commit log (pure), and ``applying`` makes the changes
on request, keeping copies and an audit record.
"""

from exactly_once.operation.repair.applying import Repair, examine, repair
from exactly_once.operation.repair.verdicts import Action, FileFinding

__all__ = ["Action", "FileFinding", "Repair", "examine", "repair"]
