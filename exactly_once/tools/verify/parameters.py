"""The parameters of a verification: the flags of ``exactly-once verify`` and the configuration of the check
``verified`` are made from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exactly_once.tools.operation.model import parameter, sink_parameter
from exactly_once.tools.verify.by_origin.comparison import ORDERS, Question
from exactly_once.tools.verify.by_origin.origin import Origin, PerInput
from exactly_once.txn.leaders import OLDER_THAN_S

#: Batches that are judged: the commit log keeps 64 of a stream.
BATCHES = 64

#: Time for which findings are read again that a healthy stream may show for a moment.
SETTLE_S = 15.0


@dataclass(frozen=True)
class VerifyParameters:
    """The parameters of ``verify``; a :class:`Question` as ``origin`` replaces the other fields on origins."""

    sink_id: str = sink_parameter("The sink.", "sink", form="")
    checkpoint: str | None = parameter(
        None,
        "Also check the stream's checkpoint: a path, or a URI (file, hdfs, s3, ...)",
        "--checkpoint",
        metavar="LOCATION",
    )
    batches: int = parameter(
        BATCHES,
        "How many of the newest batches to check; the commit log keeps 64 of a stream",
        "--batches",
        metavar="N",
        form="batches",
        least=1,
    )
    settle_s: float = parameter(
        SETTLE_S,
        "How many seconds to wait before a finding is reported that a healthy stream also has for a moment, such as a "
        "batch that is being committed; 0: report it at once",
        "--settle",
        metavar="SECONDS",
        form="settle_s",
        least=0,
    )
    origin: str | Question | None = parameter(
        None,
        "Also compare the output with the input; says where each output record holds the topic-partition-offset of its "
        "input record: header:NAME, key, value or json:FIELD",
        "--origin",
        metavar="WHERE",
    )
    against: str = parameter(
        "",
        "With --origin: also compare the output with that of this sink, an older version of the stream",
        "--against",
        metavar="SINK",
    )
    outputs_per_input: str = parameter(
        "",
        "With --origin: how many output records each input record has: N, at-most-N or any (default: 1)",
        "--outputs-per-input",
        metavar="N",
    )
    inputs: Sequence[str] = parameter(
        (),
        "With --origin: only this input topic; repeatable; without --checkpoint, from its beginning",
        "--input",
        metavar="TOPIC",
    )
    topics: Sequence[str] = parameter(
        (),
        "Also search this topic for transactions of this sink that no decision names; repeatable; with --origin: an "
        "output topic; default: the topics that the sink's decisions name",
        "--topic",
        metavar="TOPIC",
    )
    order: str = parameter(
        "",
        "With --origin: which output records must keep the order of the input: those of a key (default), those of an "
        "input partition, or none, for a stream that shuffles",
        "--order",
        choices=ORDERS,
    )
    refuse_foreign: bool = parameter(
        False,
        "With --origin: report each record without an origin as a phantom, because only this sink writes to these "
        "topics",
        "--refuse-foreign",
    )
    backfilled: bool = parameter(
        False,
        "With --origin: accept output of input from before the stream's first offset, which a backfill wrote",
        "--backfilled",
    )
    last: int | None = parameter(
        None,
        "With --origin: compare only the newest batches with at most N offsets of input; default: all input",
        "--last",
        metavar="N",
        least=1,
    )
    hanging_age_s: float = parameter(
        OLDER_THAN_S, "The age from which an open transaction that no coordinator knows counts as hanging."
    )
    budget_s: float = parameter(60.0, "For each question to the brokers; reading records takes as long as it takes.")

    @property
    def question(self) -> Question | None:
        """The origin and the expectations as one; None without an origin. Raises InvalidOption."""
        if not isinstance(self.origin, str):
            return self.origin
        outputs = PerInput.parse(self.outputs_per_input or "1")
        return Question(Origin.parse(self.origin), outputs, self.order or "key", self.refuse_foreign, self.backfilled)
