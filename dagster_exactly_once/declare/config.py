"""The configuration of ops: typed, checked before a run starts, explained in the launchpad."""

from collections.abc import Mapping
from copy import deepcopy
from enum import Enum
from typing import Any, get_type_hints

import dagster as dg
from pydantic import Field, create_model

from exactly_once.errors import InvalidOption
from exactly_once.options import is_secret
from exactly_once.protocol.names import check_sink_id
from exactly_once.tools.diagnosis import Thresholds
from exactly_once.tools.operation.model import SAME, STREAM, parameters_of
from exactly_once.tools.verify.parameters import VerifyParameters

#: The choice in place of a stream's name, which has no dash: the sink of a stream that was renamed, or that nothing
#: here declares.
ANOTHER_SINK = "another-sink"

#: The sink's options, in lower case, that neither a declaration nor a run may give by name, and where each comes from.
ELSEWHERE = {
    "topic": "outputs of the declaration",  # it would go before the topics of the rows, rejected ones too
    "kafka.bootstrap.servers": "the Kafka resource",
    "sink.id": "sink_id",
    "checkpointlocation": "the field checkpoint of a run, or the resource checkpoints",
    "write.id": "the backfill",
}


def rarely(default: Any, description: str, **limits: Any) -> Any:
    """Return a field that the launchpad explains beside the editor, and does not fill in: most starts leave it alone.

    Dagster fills in every default that it knows, by the alphabet: the two fields that matter stood among a dozen.
    """
    number = isinstance(default, int | float) and not isinstance(default, bool)
    said = f"{description} Default: {default:,g}." if number else description
    return Field(default_factory=lambda: deepcopy(default), description=said, **limits)


class Mode(Enum):
    """The mode says when a run of a stream ends. Dagster shows the members' names, so a person types these."""

    until_stopped = "until_stopped"
    caught_up = "caught_up"


class Once(dg.Config):
    """Consents for one start, each with the confirmation that an error named. A restart by a sensor drops them."""

    accept_lost: str = rarely(
        "",
        description=(
            "The value that EO-EXPIRED names. Consequence: records of a decided batch are lost for readers, and the "
            "stream continues without them."
        ),
    )
    adopt: str = rarely(
        "",
        description=(
            "The value that EO-REWOUND, EO-TOPIC-RECREATED or EO-INPUT-RECREATED names. Consequence: the stream "
            "continues on a history or a topic that the commit log does not know, and records may appear twice or be "
            "missing."
        ),
    )
    takeover: str = rarely(
        "",
        description="The id that EO-SINK-OWNED names. Consequence: the query that owns the sink cannot continue "
        "after this.",
    )
    fence: str = rarely(
        "",
        description=(
            "The consequence that EO-SINK-OPERATED names, typed out: a driver that somebody else operates loses the "
            "sink and stops with EO-FENCED."
        ),
    )

    def options(self) -> dict[str, str]:
        """Return the consents as options of the sink."""
        given = {"sink.accept.lost": self.accept_lost, "sink.adopt": self.adopt, "sink.takeover": self.takeover}
        return {option: confirmation for option, confirmation in given.items() if confirmation}


class StreamConfig(dg.Config):
    """The configuration of a run of a stream, which Dagster checks before the run starts.

    To give a stream fields of its own, subclass it at module level, and annotate the ``config`` of its function with
    that class. Names that end in ``_s`` are seconds, in ``_h`` hours. Dagster keeps the values with the run and shows
    them: no field is for a secret.
    """

    mode: Mode = Field(
        default=Mode.until_stopped,
        description="until_stopped: until Terminate. caught_up: until the input present at the start is processed.",
    )
    start_from: str = Field(
        default="",
        description=(
            "Where a stream without a checkpoint begins: earliest, latest, or a date or time like 2026-07-01 or "
            "2026-07-01T12:00:00Z (UTC unless it names a zone), which means the first record since then. Empty: as "
            "the stream declares. No effect once a checkpoint exists. A backfill writes what comes before."
        ),
    )
    trigger_interval_s: float = rarely(
        1.0,
        ge=0.0,
        description="Seconds between the starts of two batches (until_stopped); 0: without a pause.",
    )
    max_offsets_per_trigger: int = rarely(
        100_000,
        ge=1,
        description=(
            "An upper limit for one batch; bounds how long its transactions stay open. Several input topics share it "
            "equally."
        ),
    )
    checkpoint: str = rarely("", description="Checkpoint location; empty: the stream's own, where checkpoints are.")
    sink_id: str = rarely(
        "",
        description=(
            "Identity of the stream on the cluster; empty: as the stream declares. With a new id, the stream starts "
            "over, and no sensor watches it."
        ),
    )
    sink_options: dict[str, str] = rarely(
        {}, description="More options of format(kafka_exactly_once), such as kafka.compression.type."
    )
    once: Once = rarely(Once(), description="Consents that a person gives for this start only.")
    report_interval_s: float = rarely(
        30.0,
        ge=1.0,
        description="Seconds between two reports to Dagster; a run reports less often as it ages, at last each 15 min.",
    )
    rotate_after_h: float = rarely(
        0.0,
        ge=0.0,
        description=(
            "Hours until the sensor exactly_once_liveness starts the next run, with the code that is deployed then, "
            "and this run ends once that one is ready; 0: never."
        ),
    )

    def checked_sink_options(self) -> dict[str, str]:
        """Return the options of the sink that this run adds.

        Raises
        ------
        InvalidOption
            One of them is a secret: Dagster keeps the configuration of a run, and shows it to whoever opens the UI. Or
            it has its value from elsewhere (:data:`ELSEWHERE`).
        """
        for name, value in self.sink_options.items():
            if where := ELSEWHERE.get(name.lower()):
                raise InvalidOption(
                    f"sink_options holds {name}, which comes from {where}",
                    f"Remove {name} from sink_options",
                    "Nothing was started",
                )
            if is_secret(name, value):
                raise InvalidOption(
                    f"sink_options holds {name}, a secret: Dagster now keeps it with this run and shows it in the UI",
                    f"Change the secret in {name}. Give the new one to the Kafka resource or to options= of the "
                    "declaration, from a variable of the environment",
                )
        return dict(self.sink_options)


class ReconcileConfig(dg.Config):
    """The configuration of the checks ``no_duplicates_and_no_loss`` and ``same_as_blue``: how much they compare."""

    offsets: int = Field(
        default=100_000,
        ge=1,
        description="How many of the newest committed offsets of the input to compare, over all its partitions.",
    )


class PolicyConfig(dg.Config):
    """Time limits: a check fails when something is under way for longer."""

    policy_s: float = Field(default=Thresholds().stale_after_s, gt=0, description="Seconds.")


class FreshnessConfig(dg.Config):
    """Time limits for input that waits."""

    limit_s: float = Field(
        default=0.0, ge=0, description="Seconds that input may wait without a commit; 0: as the stream declares."
    )


class BackfillConfig(dg.Config):
    """The configuration of a backfill: how days are filled.

    It has no dry run: whoever launches a run has named its days, and a run that filled none would fail them.
    """

    checkpoint: str = Field(
        default="",
        description="Checkpoint of the live stream, which says where the stream began; empty: the one it last used.",
    )


class SideTopicConfig(dg.Config):
    """The configuration of the checks ``rejected_since_last_look`` and ``dead_letters_since_last_look``."""

    acknowledge: bool = Field(
        default=False,
        description="Take all records that are in the topic now as seen: this check counts them no more.",
    )


class CloseConfig(dg.Config):
    """The configuration of ``<name>_close_windows``: which windows it closes."""

    first: str = Field(
        default="",
        description=(
            "The first window with events, by its name, like 2026-01-31-00:00, daily like 2026-01-31; empty: as the "
            "stream noted it, or else by the oldest input record's time stamp."
        ),
    )
    dry_run: bool = Field(default=True, description="Only name the windows that it would close; change nothing.")
    reason: str = Field(default="", description="The reason, for the audit trail.")


def config_of(parameters: type, **more: Any) -> type[dg.Config]:
    """Make the configuration of a job or a check from a parameters class, with ``more`` fields; that of an operation
    has the field ``stream``, whose values :func:`with_streams` adds.
    """
    own: dict[str, Any] = {}
    hints = get_type_hints(parameters)
    for one, how in parameters_of(parameters):
        if how.form == STREAM:
            own[STREAM] = (Enum, Field(description=how.text))
        elif how.form:
            default = one.default if how.form_default is SAME else how.form_default
            field = rarely if how.rarely else Field
            description = f"{how.text.rstrip('.')}."
            own[how.form] = (
                str if default == "" else hints[one.name],
                field(default=default, description=description, ge=how.least),
            )
    if STREAM in own:
        another = f"The id of a sink that no stream here declares, when stream is {ANOTHER_SINK}."
        own = {STREAM: own.pop(STREAM), **own, "sink_id": (str, rarely("", another))}
    name = parameters.__name__.replace("Parameters", "Config")
    doc = (parameters.__doc__ or "").replace("The parameters of", "The configuration of")
    return create_model(name, __base__=dg.Config, __doc__=doc, __module__=__name__, **own, **more)


def parameters_from(parameters: type, config: Any, sink_id: str, **more: Any) -> Any:
    """Return the parameters that a launchpad's configuration gives, and ``more``; ``sink_id`` is that of
    :func:`sink_of`.
    """
    given = {
        one.name: getattr(config, how.form) for one, how in parameters_of(parameters) if how.form not in ("", STREAM)
    }
    return parameters(sink_id=sink_id, **given, **more)


#: The configuration of the check ``verified``: how much it proves.
VerifyConfig = config_of(
    VerifyParameters,
    by_origin=(
        bool,
        Field(
            default=False,
            description="Also compare the whole output with the whole input, by Checks(origin=...); reads both from "
            "the stream's first offset on.",
        ),
    ),
)


def with_streams(config: type[dg.Config], sink_ids: Mapping[str, str]) -> type[dg.Config]:
    """Return ``config`` with the streams of a code location, by name, as the choice of its field ``stream``."""
    streams = Enum("ExactlyOnceStream", {**sink_ids, ANOTHER_SINK: ""})  # type: ignore[misc]
    # Dagster's refusal of a wrong value does not say which ones it takes
    said = f"{config.model_fields['stream'].description} One of {', '.join(member.name for member in streams)}."
    own: Any = {"stream": (streams, Field(description=said))}
    return create_model(config.__name__, __base__=config, __doc__=config.__doc__, **own)


def sink_of(config: Any) -> str:
    """Return the id of the sink that a person chose, by the stream's name or else by itself. Raises InvalidOption when
    ``sink_id`` contradicts the chosen stream, or is no id of a sink.
    """
    if config.stream.name == ANOTHER_SINK:
        return check_sink_id(config.sink_id)
    chosen = str(config.stream.value)
    if config.sink_id not in ("", chosen):
        raise InvalidOption(
            f"the fields contradict each other: the stream {config.stream.name} has the sink {chosen}, but sink_id is "
            f"{config.sink_id}",
            f"Leave sink_id empty; for the sink {config.sink_id}, choose stream: {ANOTHER_SINK}",
        )
    return chosen
