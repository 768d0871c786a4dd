"""The sensors' settings as resources: typed, on the Resources page of the UI, and changed by environment variables."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

import dagster as dg
from pydantic import Field

from dagster_exactly_once.resources import set_fields
from exactly_once.tools.diagnosis import Thresholds

_LIMITS = Thresholds()


class _FromEnvironment(dg.ConfigurableResource):
    """Fields that environment variables may set: the prefix, then the field's name in capitals."""

    @classmethod
    def from_environment(cls, prefix: str, **fields: Any) -> Self:
        """Return ``fields``, with those that ``<prefix><FIELD>`` variables set: a variable wins over the code.

        Raises
        ------
        pydantic.ValidationError
            A variable has a value that its field cannot hold: the code location then says so instead of loading.
        """
        return cls(**{**fields, **set_fields(cls.model_fields, prefix)})


class RestartPolicy(_FromEnvironment):
    """The resource ``restart_policy``: when a failed stream starts again. Each field lists the strategies that use it.

    Names that end in ``_s`` are seconds. ``EXACTLY_ONCE_RESTART_<FIELD>`` variables win over the code.

    Raises
    ------
    pydantic.ValidationError
        A field is out of its bounds.
    """

    strategy: str = Field(
        default="exponential-delay",
        pattern="^(none|fixed-delay|exponential-delay|failure-rate)$",  # Flink's names
        description="none, fixed-delay, exponential-delay or failure-rate.",
    )
    attempts: int = Field(default=10, ge=1, description="fixed-delay, exponential-delay: restarts in a row.")
    delay_s: float = Field(default=10.0, ge=0, description="fixed-delay, failure-rate: the pause before a restart.")
    initial_s: float = Field(default=1.0, gt=0, description="exponential-delay: the first pause.")
    max_s: float = Field(default=60.0, gt=0, description="exponential-delay: the longest pause.")
    multiplier: float = Field(default=2.0, ge=1, description="exponential-delay: how a pause grows.")
    jitter: float = Field(default=0.1, ge=0, lt=1, description="exponential-delay: the random share of a pause.")
    reset_after_s: float = Field(
        default=600.0, gt=0, description="exponential-delay: a run that lived this long resets the count."
    )
    max_failures: int = Field(default=3, ge=1, description="failure-rate: failures within one interval.")
    interval_s: float = Field(default=300.0, gt=0, description="failure-rate: the interval.")
    end_frozen_after_s: float = Field(
        default=120.0,
        ge=0,
        description=(
            "With each strategy: a process of a run, on this host, that is stopped or stuck in the kernel for so long "
            "is killed, and the run counts as failed; 0: never. A core dump or a snapshot of the machine stops a "
            "process for seconds to a minute; after 15 min, the brokers abort what the process has open."
        ),
    )

    @property
    def limit(self) -> int:
        """The most restarts in a row; 0: any number."""
        return self.attempts if self.strategy in ("fixed-delay", "exponential-delay") else 0


class WatchPolicy(_FromEnvironment):
    """The resource ``watch_policy``: what counts as normal, when a person is told, and how often sensors recover.

    Names that end in ``_s`` are seconds. ``EXACTLY_ONCE_WATCH_<FIELD>`` variables win over the code.

    Raises
    ------
    pydantic.ValidationError
        A field is out of its bounds.
    """

    stall_after_s: float = Field(
        default=_LIMITS.stall_after_s, gt=0, description="Stalled: input has waited this long without a commit."
    )
    lag_limit: int = Field(
        default=_LIMITS.lag_limit, ge=0, description="A stream more offsets behind than this is catching up or lagging."
    )
    stale_after_s: float = Field(
        default=_LIMITS.stale_after_s,
        gt=0,
        description=(
            "A transaction open for longer is stale, or for 70 % of its timeout if that is more and somebody works on "
            "it; set it well above the longest batch."
        ),
    )
    hanging_older_than_s: float = Field(
        default=_LIMITS.hanging_older_than_s,
        gt=0,
        description="Only older transactions can hang; set it to the brokers' transaction.max.timeout.ms, or more.",
    )
    hanging_every_s: float = Field(
        default=300.0, ge=0, description="How often to ask the partition leaders, which costs more than the rest."
    )
    notice_after_s: float = Field(
        default=180.0,
        ge=0,
        description=(
            "Trouble must stay this long before a person is told: longer than a recovery and a restart take, and early "
            "enough before the brokers abort a decided transaction."
        ),
    )
    max_recoveries: int = Field(
        default=3,
        ge=1,
        description="Circuit breaker: it opens after this many recoveries within the window did not help.",
    )
    window_s: float = Field(default=900.0, gt=0, description="Circuit breaker: the length of the window.")
    healthy_s: float = Field(default=120.0, gt=0, description="Circuit breaker: a run that lasted this long closes it.")

    @property
    def limits(self) -> Thresholds:
        """The limits at which a symptom begins."""
        names = {field.name for field in fields(Thresholds)} & set(type(self).model_fields)
        return Thresholds(**{name: getattr(self, name) for name in names})
