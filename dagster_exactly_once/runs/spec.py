"""The description of a stream, by names: what sensors and recoveries know of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """A stream, by names: topics by name, assets by keys as text like ``shop/orders``.

    It is run by the op ``op`` of ``job``, unless it runs elsewhere and is only observed (``managed``). Its sink is
    ``sink_id`` on the cluster; ``source_keys`` are the assets of its ``sources``, in the same order, ``asset_keys``
    those of its ``outputs``; ``asset`` keeps the observations of the sink's transactions.
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
