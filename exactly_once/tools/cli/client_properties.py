"""The file of ``--command-config``: Java properties, as Kafka's own tools read them (``java.util.Properties``).

Settings of other tools in it are named in one warning. No message shows a value: it may be a password.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from exactly_once.errors import InvalidOption
from exactly_once.kafka import producer_options
from exactly_once.kafka.connection import OPTIONS
from exactly_once.properties import pairs
from exactly_once.protocol.spelling import did_you_mean

log = logging.getLogger(__name__)

#: Settings that name one principal, or one trust, together: a file that has one of a group replaces the whole group.
_GROUPS = ("kafka.sasl.", "kafka.ssl.")

#: Prefixes of the connection's settings.
_OURS = ("bootstrap.", "security.", *(group.removeprefix("kafka.") for group in _GROUPS))

_SERVERS = "kafka.bootstrap.servers"

#: A key that may be shown: anything else may be a piece of a secret.
_KEY = re.compile(r"[a-z][a-z.]*")


def read(path: str) -> dict[str, str]:
    """Return the settings of the file at ``path``; raise as :func:`parse`, also when the file cannot be read."""
    try:
        content = Path(path).read_bytes()
    except OSError as e:
        raise InvalidOption(
            f"--command-config {path} cannot be read ({e.strerror})", "Correct the path of --command-config"
        ) from e
    try:
        return parse(content.decode(), path)
    except UnicodeDecodeError:
        return parse(content.decode("latin-1"), path)  # as Java reads every such file


def parse(text: str, name: str) -> dict[str, str]:
    """Return the settings of a connection in ``text`` as its options, with the prefix ``kafka.``; warn once of others.

    Parameters
    ----------
    name : str
        The file, for errors.

    Raises
    ------
    InvalidOption
        With the number of the line: Java cannot read it, or it is one of the connection's settings, misspelt.
    """
    settings, others = {}, list[str]()
    for number, key, separator, value in pairs(text, name):
        if key in OPTIONS:
            settings[f"kafka.{key}"] = value
            continue
        is_key = separator in ("=", ":") and _KEY.fullmatch(key)
        misspelt = is_key and key.startswith(_OURS) and key not in producer_options.JAVA
        if misspelt and (way := did_you_mean(key, OPTIONS)):
            raise InvalidOption(f"{name}, line {number}: {key} is not a setting of Kafka's clients", way)
        others.append(key if is_key else f"line {number}")
    if others:
        log.warning(
            "EO-WARN-PROPERTIES %s has settings that exactly-once does not use, and ignores: %s",
            name,
            ", ".join(others),
        )
    return settings


def merge(environment: Mapping[str, str], file: Mapping[str, str], servers: str | None) -> dict[str, str]:
    """Return the options of the connection: a flag wins over the file, the file over the environment.

    The settings below ``sasl.`` come from one place, and so do those below ``ssl.``: the name of one principal never
    meets the password of another.
    """
    replaced = tuple(group for group in _GROUPS if any(option.startswith(group) for option in file))
    kept = {option: value for option, value in environment.items() if not option.startswith(replaced)}
    return {**kept, **file, **({_SERVERS: servers} if servers else {})}
