"""The words of one start: each accepts one thing, and nothing that comes later."""

from __future__ import annotations

import logging

import pytest

from exactly_once.coordinator.consent import Consent
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import WRITE, Decision

BATCH = Batch("q-new", 7, "d")


def decision(batch_id: int = 7, decided_ms: int = 1000, query: str = "q-new") -> Decision:
    return Decision(query, batch_id, 1, (), "d", 5, decided_ms)


def test_a_batch_is_adopted_by_its_query_and_number_alone() -> None:
    """Guards against a word that switches the check for a lost commit log off forever: the batch in flight twice."""
    consent = Consent(adopt=("q-new/7",))
    assert consent.adopts_history(BATCH, None)
    assert not consent.adopts_history(Batch("q-new", 8, "d"), None)
    assert not consent.adopts_history(Batch("q-other", 7, "d"), None)
    assert not Consent().adopts_history(BATCH, None)


def test_a_topic_is_adopted_by_its_id_alone() -> None:
    """Guards against a topic that is made again a second time, and whose loss is not said."""
    consent = Consent(adopt=("id-1", "id-2"))
    assert consent.adopts_topic("id-1") and consent.adopts_topic("id-2")
    assert not consent.adopts_topic("id-3")


def test_a_takeover_adopts_the_history_of_the_query_that_takes_and_ends_with_it() -> None:
    """Guards against a takeover left in the options that adopts a history when the log of the new owner is lost."""
    consent = Consent(takeover="q-old")
    assert consent.takes_over("q-old") and consent.adopts_history(BATCH, "q-old")
    assert not consent.takes_over("q-new") and not consent.takes_over(None)
    assert not consent.adopts_history(BATCH, "q-new") and not consent.adopts_history(BATCH, None)


def test_a_loss_is_accepted_for_one_decision() -> None:
    """Guards against the same batch number of the next checkpoint, skipped without a word."""
    consent = Consent(accept_lost="7@1000")
    assert consent.accepts_lost(decision())
    assert not consent.accepts_lost(decision(decided_ms=1001))
    assert not consent.accepts_lost(decision(batch_id=8))
    assert Consent(accept_lost="day-1@1000").accepts_lost(decision(0, query=f"{WRITE}day-1"))


def test_the_weaker_guarantees_adopt_any_history_and_any_topic_but_no_loss() -> None:
    """Guards against a weaker guarantee that goes past decided rows which are missing."""
    consent = Consent(adopts_all=True)
    assert consent.adopts_history(BATCH, None) and consent.adopts_topic("id-1")
    assert not consent.accepts_lost(decision()) and not consent.takes_over("q-old")


def test_a_start_says_which_words_it_did_not_need(caplog: pytest.LogCaptureFixture) -> None:
    """Guards against words that stay in a job's options until they fit something that nobody meant."""
    consent = Consent(adopt=("q-new/7", "id-1"), takeover="q-old", accept_lost="7@1000")
    assert consent.adopts_topic("id-1") and consent.accepts_lost(decision())
    with caplog.at_level(logging.WARNING):
        assert consent.say_unneeded("orders") == ["sink.adopt=q-new/7", "sink.takeover=q-old"]
    assert all("EO-WARN-WORD" in r.getMessage() and "'orders'" not in r.getMessage() for r in caplog.records)
    assert len(caplog.records) == 2
