"""The rules for ending a transaction by hand, and the refusals that keep the guarantee: pure.

A refusal that a person can overrule carries a phrase that states the consequence; only that very phrase, typed out,
overrules it.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable
from typing import Any

from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Decided, Owner, naming, title
from exactly_once.inspection.hanging import Attributed
from exactly_once.inspection.processes import describe_frozen, end_command
from exactly_once.inspection.sink import UNDER_WAY
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartId
from exactly_once.protocol.records import ACCEPTED
from exactly_once.txn.coordinators import Description
from exactly_once.txn.leaders import Hanging


class Refused(ExactlyOnceError):
    """The operation would lose or duplicate records, stop a running driver, or touch another application's transaction.

    ``phrase`` overrules the refusal; None when nothing does.
    """

    code = "EO-REFUSED"
    default_safe = "Nothing was changed"

    def __init__(self, what: str, way_out: str, safe: str | None = None, phrase: str | None = None):
        self._advice = way_out.rstrip(".")
        if phrase is not None:
            way_out = f"{self._advice}. To do it anyway, type out the consequence: --force {shlex.quote(phrase)}"
        super().__init__(what, way_out, safe)
        self.phrase = phrase

    def in_form(self, field: str) -> Refused:
        """Return the same refusal for a form, where the consequence goes into ``field`` and not after ``--force``."""
        if self.phrase is None:
            return self
        return Refused(self.what, f"{self._advice}. To do it anyway, set {field} to: {self.phrase}")


def refusal_of(check: Callable[..., object], *facts: Any) -> Refused | None:
    """Return why ``check(*facts)`` refuses; None when it does not."""
    try:
        check(*facts)
    except Refused as refused:
        return refused
    return None


def check_commit(
    transaction: Description, log: LogState, written: int | None = None, force: str | None = None
) -> Decided | None:
    """Make sure that ``transaction`` may be committed.

    Parameters
    ----------
    written : int, optional
        The number of its records, for the phrase; None when unknown.

    Returns
    -------
    Decided or None
        Its decision; None when it is undecided and ``force`` states that its rows will be duplicated.

    Raises
    ------
    Refused
        When it is not under way, or undecided: committing it would show a part of a batch that will be written again.
    """
    _check_under_way(transaction)
    decided = naming(transaction, log)
    if decided is None:
        topics = " and ".join(sorted({topic for topic, _ in transaction.partitions})) or "its topics"
        _overruled(
            force,
            f"duplicate {_count(written)} of {topics}",
            f"the transaction of {transaction.transactional_id} is not decided; its rows will be written again, so "
            f"committing it would duplicate them",
            "Start the stream or run the recovery; either aborts the transaction",
        )
    return decided


def check_abort(transaction: Description, log: LogState, force: str | None = None) -> Decided | None:
    """Make sure that ``transaction`` may be aborted.

    Returns
    -------
    Decided or None
        None when it is undecided; its decision when ``force`` states that its rows will be rolled back.

    Raises
    ------
    Refused
        When it is not under way, or decided: aborting it takes its rows from readers until they are written again.
    """
    _check_under_way(transaction)
    decided = naming(transaction, log)
    if decided is not None:
        rows = f"{title(decided.decision)}, {_count(decided.handle.records)}"
        again = f"the next {'try' if decided.decision.write_id else 'start'} writes them again"
        _overruled(
            force,
            f"roll back {rows}; {again}",
            f"the transaction of {transaction.transactional_id} is decided ({rows}); if it is aborted, {again} while "
            "their input is there, and readers miss them until then",
            "Commit the transaction, start the stream, or run the recovery: each of these commits the transaction",
        )
    return decided


def check_owner(sink_id: str, owner: Owner | None, force: str | None = None) -> None:
    """Raise Refused, with who operates the driver, if a claim would fence a driver that runs, or of which nobody can
    tell.
    """
    if owner is None or owner.works is False:
        return
    driver = f"the {owner.claim.process}"
    way_out = (
        "Stop the driver first, or run the command on the driver's host; a running driver ends its own transactions"
    )
    if owner.frozen:
        what = f"{driver} owns sink {sink_id!r} and is frozen: {describe_frozen(owner.frozen)}"
        way_out = f"End the frozen process first: {end_command(owner.frozen)}"
    elif owner.works:
        what = f"{driver} owns sink {sink_id!r} and is alive"
    else:
        what = f"{driver} owns sink {sink_id!r}, and {socket.gethostname()} cannot tell whether that driver is alive"
    _overruled(
        force,
        f"fence {driver}",
        f"{what}; this would take the sink from that driver, which would stop with EO-FENCED",
        way_out,
    )


def check_hanging(transaction: Attributed, force: str | None = None, commit: bool | None = None) -> bool:
    """Make sure that a hanging transaction may be ended: committed in its partition if it is decided, else aborted.

    Parameters
    ----------
    commit : bool, optional
        Only this. By default what the commit log says; where that cannot tell, what the phrase in ``force`` says.

    Returns
    -------
    bool
        Whether to commit it.

    Raises
    ------
    Refused
        When it is not known to be ours, when the log cannot tell, when a person gave up parts of its batch, or when the
        log says the opposite of ``commit``.
    """
    h = transaction.hanging
    if transaction.decided is not None and transaction.completed == ACCEPTED:
        return _check_given_up(transaction, transaction.decided, force, commit)
    if transaction.decided is not None:
        _check_decided(transaction, transaction.decided, commit)
        return True
    if not transaction.told and (commit or (commit is None and force == _showing(h))):
        _overruled(
            force,
            _showing(h),
            f"no decision names the hanging transaction {h.name} any more: the commit log keeps only the newest "
            "decisions",
            f"{_COMPARE}. If the rest is visible, the transaction was decided, and you may commit it",
        )
        return True
    if commit:
        raise Refused(
            f"no decision names the hanging transaction {h.name}",
            f"To abort it, run exactly-once transactions abort --hanging {h.name}",
        )
    if not transaction.told:
        _overruled(
            force,
            f"lose up to {_count(h.records)} on {h.topic}-{h.partition}, if they were decided",
            "the commit log keeps only the newest decisions and no longer shows whether the hanging transaction "
            f"{h.name} was decided; aborting it would then lose its records in this partition",
            f"{_COMPARE}. If the rest is visible, run exactly-once transactions commit --hanging {h.name}, or the job "
            f'exactly_once_end_hanging, with the consequence "{_showing(h)}"',
        )
    elif transaction.owner != "ours":
        whose = f"belongs to {h.transactional_id!r}" if transaction.owner == "foreign" else "has an unknown writer"
        _overruled(
            force,
            f"lose up to {_count(h.records)} of {transaction.owner} producer {h.producer_id} on "
            f"{h.topic}-{h.partition}",
            f"the hanging transaction {h.name} {whose}; its records may belong to another application",
            f"Ask the owner of the application that writes to topic {h.topic}",
        )
    return False


#: The way to find out by hand what no log tells any more.
_COMPARE = (
    "Run exactly-once verify --origin, which compares all output with all input, to find out whether the rest of "
    "its batch is visible"
)


def _check_decided(transaction: Attributed, decided: Decided, commit: bool | None) -> None:
    h, name = transaction.hanging, title(decided.decision)
    if not transaction.completed:
        raise Refused(
            f"the hanging transaction {h.name} is decided ({name}), but the commit log does not say yet how it ended",
            f"Run exactly-once recover {transaction.sink_id}, or the job exactly_once_recovery, which commits {name} "
            f"or has it "
            "written again. Then list the hanging transactions again",
        )
    if commit is False:
        raise Refused(
            f"the hanging transaction {h.name} is decided ({name}): aborting it would lose its records on this "
            "partition",
            f"Run exactly-once transactions commit --hanging {h.name}",
        )


def _check_given_up(transaction: Attributed, decided: Decided, force: str | None, commit: bool | None) -> bool:
    """Return whether a transaction that a person gave up may be committed.

    A person may have written the missing rows again: to show these would double them. The mark does not say which parts
    were given up, so the transaction may also be one that was committed, of which an abort would lose the rest.
    """
    h, name = transaction.hanging, title(decided.decision)
    if commit is not False and force == _showing(h):
        return True
    _overruled(
        force if commit is not True else None,
        _showing(h) if commit else f"lose up to {_count(h.records)} on {h.topic}-{h.partition}, unless written again",
        f"a person gave up parts of {name} (sink.accept.lost), and the hanging transaction {h.name} is of that batch: "
        "its rows may have been written again by hand since, and committing it would then show them twice",
        "Check whether the output already holds the rows. If it does, or if they should stay missing, run exactly-once "
        f"transactions abort --hanging {h.name}. If it does not, run exactly-once transactions commit --hanging "
        f"{h.name} --force '{_showing(h)}', or launch the job exactly_once_end_hanging with that phrase as consequence",
    )
    return False


def _showing(h: Hanging) -> str:
    return f"show up to {_count(h.records)} on {h.topic}-{h.partition}"


def part_sink(transactional_id: str) -> str:
    """Return the sink of a part's transactional id; raise Refused for any other id: this package touches only its own
    transactions.
    """
    part = PartId.parse(transactional_id)
    if part is None:
        raise Refused(
            f"{transactional_id!r} is not the transactional id of a part",
            "Run exactly-once transactions list and use an id from it; any other id belongs to another application",
        )
    return part.sink_id


def _count(records: int | None) -> str:
    if records is None:
        return "an unknown number of records"
    return f"{records} record{'' if records == 1 else 's'}"


def _overruled(force: str | None, phrase: str, what: str, way_out: str) -> None:
    """Return when ``force`` is the phrase, white space aside; refuse otherwise."""
    phrase = " ".join(phrase.split())
    if force is None or " ".join(force.split()) != phrase:
        raise Refused(what, way_out, phrase=phrase)


def _check_under_way(transaction: Description) -> None:
    if transaction.state not in UNDER_WAY:
        raise Refused(
            f"{transaction.transactional_id} has no transaction under way (the broker reports "
            f"{transaction.state or 'unknown id'})",
            "Run exactly-once transactions list again: this transaction may have ended in the meantime",
        )
