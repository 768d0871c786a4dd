"""The description of a stream, by names: what sensors and recoveries know of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """A stream, by names.

    Attributes
    ----------
    name : str
        The stream's own name, unique in the code location.
    job, op : str
        The job that runs it, and the op of that job.
    sink_id : str
        The identity of its sink on the cluster.
    sources : tuple of str
        The topics of the input, for the lag.
    source_keys : tuple of str
        The keys of their assets, in the same order.
    outputs : tuple of str
        The topics that the sink writes.
    asset_keys : tuple of str
        The keys of the outputs' assets, each as text like ``shop/orders``.
    managed : bool
        Whether this code location runs it; False for a stream that runs elsewhere and is only observed.
    asset : str
        Key of the asset on which observations of the sink's transactions are kept.
    """

    name: str
    job: str
    op: str
    sink_id: str
    sources: tuple[str, ...]
    outputs: tuple[str, ...]
    asset_keys: tuple[str, ...] = ()
    source_keys: tuple[str, ...] = ()
    asset: str
    managed: bool = True
