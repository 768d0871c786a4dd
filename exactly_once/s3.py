"""S3 for Python, which reads it through pyarrow: whether it is away, or refuses."""

from __future__ import annotations

import re

from exactly_once import location as locations
from exactly_once.errors import CheckpointAway, ExactlyOnceError

#: Words of pyarrow's errors, when S3 or what is before it does not answer, is overloaded, or fails within. By curl's
#: numbers: no connection, a time-out, no answer, a connection that broke. A name or a certificate that is wrong is none
#: of them.
_AWAY = re.compile(
    r"curlCode: (?:7|28|52|55|56)\b|HTTP status 50[0234]\b"
    r"|AWS Error (?:SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT)\b"
)


def away(what: str, location: str, e: Exception) -> ExactlyOnceError | None:
    """Make the error for ``what``, a place below ``location``, that cannot be read because S3 does not answer; None
    when the location is not on S3, or ``e`` says something else.
    """
    if not locations.is_on(location, *locations.S3) or not _AWAY.search(str(e)):
        return None
    return CheckpointAway(
        f"S3 does not answer, so this Python process cannot read {what} ({type(e).__name__}: {e})",
        "Wait until aws s3 ls, with the settings of this process, lists the checkpoint's folder, and start the stream "
        "again, unchanged",
    )
