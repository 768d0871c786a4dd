"""Failures of ops in Dagster's form: the code, the cause and the way out as metadata, for people and for sensors."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from dagster_exactly_once.streaming.failures import Diagnosis, diagnose
from exactly_once.errors import ExactlyOnceError


def as_failure(diagnosis: Diagnosis) -> dg.Failure:
    """Make the failure of an op. Dagster never retries it: the stream's restart strategy decides about restarts."""
    return dg.Failure(diagnosis.headline, metadata=diagnosis.as_metadata(), allow_retries=False)


@contextmanager
def classified() -> Iterator[None]:
    """Turn the project's own errors inside the block into a classified :class:`dagster.Failure`."""
    try:
        yield
    except ExactlyOnceError as error:
        raise as_failure(diagnose(error)) from error
