"""The steps of a batch, with their times, for a trace; nothing is kept where the sink does not ask for traces.

The steps are plain values in this process until the batch has ended, and are sent together: a driver that dies leaves
no half of a batch in a trace.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from exactly_once.errors import ExactlyOnceError, ExtraMissing
from exactly_once.options import SinkOptions

log = logging.getLogger(__name__)

Value = str | int | bool


@dataclass
class TimedStep:
    """A span before it is sent. The first step is the batch; every other one has a ``parent``, by its place.

    Attributes
    ----------
    started_ns, ended_ns : int
        Since 1970.
    error : str
        What kind of error ended it: an EO- code, or the name of another exception; "" without one.
    """

    name: str
    started_ns: int
    parent: int | None = None
    ended_ns: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)
    error: str = ""
    what: str = ""

    def end(self, error: BaseException | None = None) -> None:
        """End it now; of two errors the first one stays."""
        self.ended_ns = time.time_ns()
        if error is not None and not self.error:
            self.error = error.code if isinstance(error, ExactlyOnceError) else type(error).__name__
            self.what = str(error)


Send = Callable[[Sequence[TimedStep]], None]


class Trace:
    """The batch in flight of one driver, step by step. One thread at a time.

    Parameters
    ----------
    send : callable, optional
        Takes the steps of a batch that has ended; None: nothing is kept.
    """

    def __init__(self, send: Send | None = None):
        self._send = send
        self._steps: list[TimedStep] = []
        self._open: list[int] = []

    @contextmanager
    def planning(self, name: str) -> Iterator[None]:
        """Begin a batch with the step ``plan``, after which its tasks write. An error is the end of the batch."""
        if self._send is None:
            yield
            return
        self.end()
        self._begin(name)
        try:
            with self.step("plan"):
                yield
        except BaseException as e:
            self.end(e)
            raise
        self._begin("write")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step of the batch in flight."""
        if not self._open:
            yield
            return
        self._begin(name)
        error: BaseException | None = None
        try:
            yield
        except BaseException as e:
            error = e
            raise
        finally:
            self._finish(error)

    def written(self) -> None:
        """End the step ``write``: Spark has ended the tasks of the batch."""
        if self._open and self._steps[self._open[-1]].name == "write":
            self._finish()

    def say(self, **attributes: Value) -> None:
        """Add attributes to the innermost open step."""
        if self._open:
            self._steps[self._open[-1]].attributes |= attributes

    def say_of_batch(self, name: str = "", **attributes: Value) -> None:
        """Add attributes to the batch, and give it another ``name``."""
        if self._steps:
            self._steps[0].name = name or self._steps[0].name
            self._steps[0].attributes |= attributes

    def fail(self, error: BaseException) -> None:
        """Say that the batch has failed; it may still have to be aborted."""
        if self._steps:
            self._steps[0].end(error)

    def end(self, error: BaseException | None = None) -> None:
        """End the batch in flight, if there is one, and send its steps. Never raises: a trace is no reason to fail."""
        if self._send is None or not self._steps:
            return
        while self._open:
            self._finish(error)
        steps, self._steps = self._steps, []
        try:
            self._send(steps)
        except Exception:
            log.warning("a trace could not be sent", exc_info=True)

    def _begin(self, name: str) -> None:
        self._steps.append(TimedStep(name, time.time_ns(), self._open[-1] if self._open else None))
        self._open.append(len(self._steps) - 1)

    def _finish(self, error: BaseException | None = None) -> None:
        self._steps[self._open.pop()].end(error)


def check_traces(options: SinkOptions) -> None:
    """Refuse ``sink.trace`` where traces cannot be sent.

    Raises
    ------
    ExtraMissing
    InvalidOption
        The variables of OpenTelemetry ask for OTLP in a form other than http/protobuf.
    """
    if options.trace:
        _sender()


def trace_of(options: SinkOptions) -> Trace:
    """Return the trace of a driver: one that keeps nothing, unless ``sink.trace`` asks for it. Raises as
    :func:`check_traces`.
    """
    if not options.trace:
        return Trace()
    send, about = _sender(), {"sink": options.sink_id, "operator": options.operator}
    return Trace(lambda steps: send(steps, about))


def _sender() -> Callable[[Sequence[TimedStep], dict[str, str]], None]:
    try:
        from exactly_once.coordinator.spans import Spans
    except ImportError as e:
        raise ExtraMissing.of("sink.trace=true", str(e.name), "traces", e, "on the driver") from e
    return Spans.of_process().send
