"""Repair of a checkpoint with torn files, or with a batch that Spark should plan again.

``files`` reads it, ``verdicts`` judges it against the commit log (pure), ``applying`` makes the changes.
"""
