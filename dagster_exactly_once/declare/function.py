"""The function of a stream: what it takes, by its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from dagster_exactly_once.declare.config import StreamConfig
from dagster_exactly_once.declare.errors import BadDeclaration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: ``transform(events)`` or ``transform(events, config)``; with several sources, a parameter for each of them.
Transform = Callable[..., "DataFrame"]


def config_of(transform: Transform, stream: str, sources: Collection[str]) -> tuple[type[StreamConfig], str | None]:
    """Return the class of the configuration that ``transform`` takes, and the parameter for it; None without one.

    Raises
    ------
    BadDeclaration
        It takes other parameters than its sources and a configuration.
    """
    parameters = list(inspect.signature(transform).parameters.values())
    if len(sources) == 1:
        wanted, others = "events", parameters[1:]
        wrong = not parameters or len(parameters) > 2
    else:
        wanted, others = ", ".join(sources), [p for p in parameters if p.name not in sources]
        wrong = len(parameters) - len(others) < len(sources) or len(others) > 1
    if wrong:
        raise BadDeclaration(
            f"{stream} takes the parameters ({', '.join(p.name for p in parameters)}). "
            f"Declare it as f({wanted}) or f({wanted}, config)"
        )
    if not others:
        return StreamConfig, None
    return _annotated(others[0], transform, stream), others[0].name


def _annotated(parameter: inspect.Parameter, transform: Transform, stream: str) -> type[StreamConfig]:
    said = parameter.annotation
    if isinstance(said, str):
        try:
            said = eval(said, getattr(transform, "__globals__", {}))
        except NameError:
            said = None
    if said is inspect.Parameter.empty:
        return StreamConfig
    if not (isinstance(said, type) and issubclass(said, StreamConfig)):
        raise BadDeclaration(
            f"{stream}: the annotation of {parameter.name} is not a subclass of StreamConfig that is defined at "
            "module level. Define the class there"
        )
    return said
