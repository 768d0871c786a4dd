"""A person's consents for one start, each naming its object, so that a consent cannot outlive its purpose.

``sink.adopt``, ``sink.takeover`` and ``sink.accept.lost`` each name one thing: a batch of a checkpoint, a topic's id, a
query, a decision. A value that stays in the options matches nothing later, and every start warns of it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Self

from exactly_once.options import SinkOptions
from exactly_once.protocol.planning import Batch, history_consent
from exactly_once.protocol.records import Decision

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Consent:
    """The words of one start, and which of them were needed.

    Parameters
    ----------
    adopt : tuple of str
        ``<query id>/<batch id>`` of a checkpoint with history that the sink does not know; ids of recreated topics.
    takeover : str or None
        The query id that loses the sink.
    accept_lost : str or None
        The decision (:attr:`~exactly_once.protocol.records.Decision.consent`) of which parts may be missing.
    adopts_all : bool
        Any history and any topic: for the weaker guarantees, which promise nothing about either.
    """

    adopt: tuple[str, ...] = ()
    takeover: str | None = None
    accept_lost: str | None = None
    adopts_all: bool = False
    _needed: set[str] = field(default_factory=set, init=False)

    @classmethod
    def of(cls, options: SinkOptions, adopts_all: bool = False) -> Self:
        """Return the consents that ``options`` give."""
        return cls(options.adopt, options.takeover, options.accept_lost, adopts_all)

    def adopts_topic(self, topic_id: str) -> bool:
        """Return whether the stream may continue into the new topic with this id."""
        return self.adopts_all or (topic_id in self.adopt and self._need(f"sink.adopt={topic_id}"))

    def adopts_history(self, batch: Batch, bound: str | None) -> bool:
        """Return whether the sink may continue at ``batch`` without its history; ``bound`` is its previous query."""
        return self.adopts_batch(batch) or (bound != batch.query_id and self.takes_over(bound))

    def adopts_batch(self, batch: Batch) -> bool:
        """Return whether ``batch`` may be written although the output may hold its records: by its own value alone."""
        consent = history_consent(batch)
        return self.adopts_all or (consent in self.adopt and self._need(f"sink.adopt={consent}"))

    def takes_over(self, bound: str | None) -> bool:
        """Return whether the sink may be taken from the query ``bound``."""
        return bound is not None and bound == self.takeover and self._need(f"sink.takeover={bound}")

    def accepts_lost(self, decision: Decision) -> bool:
        """Return whether the stream may continue past ``decision`` although parts of it are missing or in doubt."""
        return decision.consent == self.accept_lost and self._need(f"sink.accept.lost={decision.consent}")

    def say_unneeded(self, sink_id: str) -> list[str]:
        """Warn of each consent that this start did not need; returns them as ``option=value``."""
        given = [f"sink.adopt={value}" for value in self.adopt]
        given += [f"sink.takeover={self.takeover}"] * bool(self.takeover)
        given += [f"sink.accept.lost={self.accept_lost}"] * bool(self.accept_lost)
        unneeded = [consent for consent in given if consent not in self._needed]
        for consent in unneeded:
            log.warning(
                "sink %s: EO-WARN-WORD this start did not need %s; remove it from the query's options", sink_id, consent
            )
        return unneeded

    def _need(self, consent: str) -> bool:
        self._needed.add(consent)
        return True
