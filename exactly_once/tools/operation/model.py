"""The shape of an operation: parameters, examination, steps, outcome; the terminal, Dagster and Python run it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.inspection.processes import AliveOf
from exactly_once.inspection.sink import RECOVERY_BUDGET_S, inspect_sink
from exactly_once.kafka.connection import Connection
from exactly_once.participant import Participant
from exactly_once.protocol.names import check_sink_id
from exactly_once.tools.diagnosis import Diagnosis
from exactly_once.tools.operation.rules import Refused, check_owner, refusal_of

#: Budget for one look at a sink, or for one request; a healthy cluster needs a fraction of a second.
BUDGET_S = 10.0

#: The field of a launchpad with the streams to choose from; beside it, ``sink_id`` takes the id of any other sink.
STREAM = "stream"

#: Marker of a field to which the launchpad gives the same default.
SAME = object()

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Parameter:
    """A field of a parameters class, as the terminal and Dagster show it.

    Attributes
    ----------
    text : str
        Sentences for people.
    flags : tuple of str
        Its names at the terminal; one without a dash is an argument without a flag. Empty: the terminal has none.
    form : str
        Its name in Dagster's launchpad; "": the launchpad has none.
    metavar, flag_text : str
        The terminal's name of the value, and its text where that differs.
    form_default
        The launchpad's default where that differs.
    rarely : bool
        The launchpad explains it beside the editor, and does not fill it in.
    choices : sequence of str
        The values that the terminal takes; empty: any.
    chooses : bool
        Whether it chooses the operation: behind a verb with several, the terminal runs the one whose parameter is
        given.
    least : float or None
        The smallest value that terminal and launchpad take; None: any.
    """

    text: str
    flags: tuple[str, ...] = ()
    form: str = ""
    metavar: str | None = None
    flag_text: str = ""
    form_default: Any = SAME
    rarely: bool = False
    choices: Sequence[str] = ()
    chooses: bool = False
    least: float | None = None

    @property
    def help(self) -> str:
        """The text for the terminal: no capital, no full stop."""
        return self.flag_text or f"{self.text[:1].lower()}{self.text[1:]}".rstrip(".")


def parameter(default: Any, text: str, *flags: str, **how: Any) -> Any:
    """Make a field of a parameters class; ``how`` has further fields of :class:`Parameter`."""
    made = {"parameter": Parameter(text, flags, **how)}
    return field(default=default, metadata=made) if default is not MISSING else field(metadata=made)


def parameters_of(kind: type) -> Iterator[tuple[Field[Any], Parameter]]:
    """Yield the fields of a parameters class, each with what the fronts know of it."""
    for one in fields(kind):
        yield one, one.metadata["parameter"]


def sink_parameter(text: str, *flags: str, **how: Any) -> Any:
    """Make the field ``sink_id``: in a launchpad, the stream to choose."""
    return parameter(MISSING, text, *flags, **{"form": STREAM, "metavar": "SINK", "flag_text": "a sink id", **how})


def force_parameter(form: str, text: str) -> Any:
    """Make the field ``force``: the phrase that overrules a refusal, under its name in the launchpad."""
    said = "the phrase that the refusal prints, which states what will be lost, duplicated or stopped"
    return parameter("", text, "--force", form=form, metavar="PHRASE", flag_text=said, rarely=True)


def fence_parameter() -> Any:
    """Make the field ``force`` of an operation that takes the sink from its owner."""
    return force_parameter(
        "fence",
        "For take_over, when the driver is not a run of this Dagster instance: the consequence, typed out exactly as "
        "EO-SINK-OPERATED prints it.",
    )


def dry_run_parameter(text: str, *flags: str, **how: Any) -> Any:
    """Make the field ``dry_run``, which a launchpad sets by default."""
    return parameter(False, text, *flags, **{"form": "dry_run", "form_default": True, **how})


def take_over_parameter(text: str) -> Any:
    """Make the field ``take_over`` of a launchpad: also take the sink from a driver that is alive."""
    return parameter(False, text, form="take_over", rarely=True)


def reason_parameter(more: str = "") -> Any:
    return parameter("", f"The reason, for the audit trail{more}.", form="reason")


@dataclass(frozen=True)
class ResultTable:
    """Rows of texts under named columns; the first one names the row."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]] = ()


def table(rows: Iterable[R], **cells: Callable[[R], object]) -> ResultTable:
    """Make a table of ``rows``: each column by its name and the function that makes its cell."""
    return ResultTable(tuple(cells), [tuple(str(cell(row)) for cell in cells.values()) for row in rows])


@dataclass(frozen=True)
class OperationOutcome:
    """The result of an examination, of a step, or of an operation.

    Attributes
    ----------
    subject : str
        The sink, or the transaction.
    sentence : str
        One sentence for people.
    facts : mapping
        Plain values and :class:`ResultTable` by name, for people.
    document : mapping
        Plain values for scripts: the JSON of the command.
    remedy : str
        What to do next.
    diagnoses : tuple of Diagnosis
        What is wrong with the sink, as every screen says it.
    ok : bool
        False: something is left for a person, and the command exits with 1.
    to_do : bool
        After an examination: whether there is anything to apply.
    refusal : ExactlyOnceError or None
        After an examination: why the operation would be refused now. Its ``phrase``, if it has one, overrules it.
    failure : ExactlyOnceError or None
        What a job raises, so that somebody looks, where a command prints the outcome.
    audit : mapping
        The entries of the audit trail, in the form of ``facts``, where they differ from these.
    value
        The result as the Python function returns it, and as the next step takes it.
    """

    subject: str
    sentence: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""
    diagnoses: tuple[Diagnosis, ...] = ()
    ok: bool = True
    to_do: bool = True
    refusal: ExactlyOnceError | None = None
    failure: ExactlyOnceError | None = None
    audit: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None

    @property
    def shown(self) -> dict[str, Any]:
        """The sentence, the facts and the diagnoses by name, for a screen that shows names and values."""
        rows = [(d.code, d.subject, d.sentence, d.remedy) for d in self.diagnoses]
        wrong = {"diagnoses": ResultTable(("code", "subject", "sentence", "remedy"), rows)} if rows else {}
        return {"sentence": self.sentence, **wrong, **self.facts}


@dataclass(frozen=True)
class OperationContext:
    """The cluster, and who asks.

    Attributes
    ----------
    operator : str
        Who operates the operation, for its claim.
    by : str
        The person who requested it, and why, for an audit record; "": the user of this process.
    alive_of : callable, optional
        The first to be asked whether a driver is alive (:func:`~exactly_once.inspection.sink.owner_of`).
    others : tuple of Participant
        The sink's outputs beside Kafka.
    topics : tuple of str
        Output topics that the stream declares.
    budget_s, work_budget_s : float
        Seconds for one look, and for the whole operation.
    may_be_unused : bool
        Whether nobody need have claimed the sink; else an unclaimed one counts as a mistake in the id.
    may_fence : callable, optional
        ``may_fence(sink_id, owner)`` raises where the owner of the sink may not be fenced; default: ``check_owner``,
        which lets the phrase in ``force`` overrule it.
    busy : callable
        Returns whether somebody is known to write through the sink still.
    warn : callable
        Takes a sentence for a log, while the operation goes on.
    """

    connection: Connection
    operator: str = ""
    by: str = ""
    alive_of: AliveOf | None = None
    others: tuple[Participant[Any], ...] = ()
    topics: tuple[str, ...] = ()
    budget_s: float = BUDGET_S
    work_budget_s: float = RECOVERY_BUDGET_S
    may_be_unused: bool = False
    may_fence: Callable[[str, Owner | None], None] | None = None
    busy: Callable[[str], bool] = lambda sink_id: False
    warn: Callable[[str], None] = lambda sentence: None

    def admit(self, sink_id: str, owner: Owner | None, force: str) -> None:
        """Raise where the sink may not be taken from its owner."""
        if self.may_fence is not None:
            self.may_fence(sink_id, owner)
        else:
            check_owner(sink_id, owner, force or None)

    def refusal(self, sink_id: str, owner: Owner | None, force: str) -> Refused | None:
        """Return why the sink may not be taken from its owner; None when it may."""
        return refusal_of(self.admit, sink_id, owner, force)

    def inspect(self, sink_id: str, readers: bool = False) -> Inspection:
        """Inspect a sink, with its waiting ``readers`` if asked."""
        return inspect_sink(self.connection, check_sink_id(sink_id), self.budget_s, readers, self.alive_of)


@dataclass(frozen=True)
class OperationStep(Generic[P]):
    """A step of an operation: ``act(context, parameters, before)`` takes the outcome of the examination or of the step
    before.
    """

    name: str
    text: str
    act: Callable[[OperationContext, P, OperationOutcome], OperationOutcome]


@dataclass(frozen=True)
class OperationJob:
    """The names that a Dagster job of an operation shows.

    Attributes
    ----------
    name, text : str
        The job and its description. The audit trail's entries have its name: ``exactly_once_end_hanging`` writes
        ``end_hanging``, ``hanging_by`` and ``hanging_reason``.
    first : str
        The op that examines, and takes the configuration; ``first_text`` is its description.
    examined, passed : str
        The outputs of that op: the state before, and what the next op takes. Where ``passed`` is "", there is no other
        op: that one also takes the steps.
    """

    name: str
    text: str
    first: str
    first_text: str
    examined: str = "examined"
    passed: str = "work"


@dataclass(frozen=True)
class Operation(Generic[P]):
    """An operation on a sink, once for all fronts.

    Attributes
    ----------
    parameters : type
        A dataclass of fields made by :func:`parameter`.
    examine : callable
        ``examine(context, parameters)`` says what :meth:`apply` would do; changes nothing.
    steps : tuple of OperationStep
        What :meth:`apply` does. The first one checks again.
    verb, does : str
        The words behind ``exactly-once``, and their help; "": not at the terminal.
    job : OperationJob or None
        None: no Dagster job.
    takes_sink : bool
        It takes the sink from its owner.
    preset : mapping
        Parameters that the verb sets; with ``sink_id``, the job has one sink and no stream to choose.
    """

    parameters: type[P]
    examine: Callable[[OperationContext, P], OperationOutcome]
    steps: tuple[OperationStep[P], ...]
    verb: str = ""
    does: str = ""
    job: OperationJob | None = None
    takes_sink: bool = False
    preset: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, context: OperationContext, parameters: P) -> OperationOutcome:
        """Examine, and take all steps. Idempotent, unless the operation says otherwise.

        Returns
        -------
        OperationOutcome
            That of the last step, with the facts of all.
        """
        outcome = self.examine(context, parameters)
        facts: dict[str, Any] = {}
        for step in self.steps:
            outcome = step.act(context, parameters, outcome)
            facts |= outcome.facts
        return replace(outcome, facts=facts)

    def command(self, program: str, parameters: P) -> str:
        """Return the command that does the same with these parameters; ``program`` begins it."""
        words = [program, self.verb]
        for one, how in parameters_of(self.parameters):
            value = getattr(parameters, one.name)
            if not how.flags or value == one.default:
                continue
            flag = how.flags[0] if how.flags[0].startswith("-") else ""
            words += [flag] if flag else []
            words += [] if isinstance(value, bool) else [shlex.quote(str(value))]
        return " ".join(words)
