"""Names of parts, and which of them a sweep may touch."""

from __future__ import annotations

import pytest

from exactly_once.participant import PartName, Scope
from exactly_once.protocol.names import incarnation
from exactly_once.protocol.records import PreparedPart

LOG = incarnation("cluster", "log")
PART = PartName("orders", 3, 7, 0, "0.17", LOG, "warehouse")


@pytest.mark.parametrize(
    "name",
    [
        PART,
        PART._replace(participant="a:b c/ü"),
        PART._replace(incarnation=""),
        PART._replace(participant=""),
        PART._replace(incarnation="", participant=""),
        PART._replace(incarnation="2345672345"),
    ],
)
def test_a_name_is_read_as_it_was_made(name: PartName) -> None:
    """What a sweep cannot read stays forever; what it reads wrongly, it takes for another claim's."""
    assert PartName.parse(str(name)) == name
    assert str(name).startswith("eo:orders:")


def test_a_name_of_before_is_what_it_was() -> None:
    """Prepared transactions and staged files of the version before must be found after the upgrade."""
    assert str(PartName("orders", 3, 7, 0, "0.17")) == "eo:orders:3:7:0:0.17"


def test_an_incarnation_is_one_of_a_log_and_tells_its_cluster() -> None:
    """It is in names forever: a version that made another one of the same log would sweep what is live."""
    assert incarnation("cluster", "log") == "czgpdqnx7d"
    assert len({incarnation(c, t) for c in ("a", "b", "") for t in ("a", "b", "")}) == 9


@pytest.mark.parametrize(
    ("part", "covered"),
    [
        (PART, True),
        (PART._replace(token=4), False),
        (PART._replace(token=9), True),  # the driver's own
        (PART._replace(sink_id="orders-2"), False),
        (PART._replace(participant="archive"), False),
        (PART._replace(participant=""), True),
        (PART._replace(incarnation=""), True),
        (PART._replace(incarnation="", token=4), False),
        (PART._replace(incarnation=incarnation("cluster", "deleted"), token=99), True),
        (PART._replace(incarnation=incarnation("staging", "log")), False),
        (PART._replace(part=1), False),  # spared
    ],
)
def test_a_scope_covers_what_nobody_can_decide_any_more(part: PartName, covered: bool) -> None:
    """One that covers more rolls back what another driver, sink, participant or cluster prepared; one that covers less
    leaves locks and files forever.
    """
    scope = Scope("orders", 4, 9, (PreparedPart("warehouse", str(PART._replace(part=1)), 1, 1),), LOG, "warehouse")
    assert scope.covers(str(part)) is covered


def test_a_superseded_driver_covers_its_own_claim_alone() -> None:
    """One that slept while the commit log was deleted would roll back what lives under the new log."""
    own = Scope("orders", 0, 3, incarnation=LOG, participant="warehouse")
    assert own.covers(str(PART))
    assert not own.covers(str(PART._replace(token=2)))
    assert not own.covers(str(PART._replace(incarnation=incarnation("cluster", "made again"))))


def test_a_scope_without_incarnation_covers_no_name_that_has_one() -> None:
    """It does not know which log's claims it counts."""
    assert not Scope("orders", 99, 3, participant="warehouse").covers(str(PART))
