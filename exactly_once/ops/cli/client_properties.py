"""The file of ``--command-config``: Java properties, as Kafka's own tools read them.

A line that cannot be followed is refused with its number. No message shows a value: it may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import OPTIONS
from exactly_once.protocol.spelling import did_you_mean

#: Settings that name one principal, or one trust, together: a file that has one of a group replaces the whole group.
_GROUPS = ("kafka.sasl.", "kafka.ssl.")

_SERVERS = "kafka.bootstrap.servers"

#: A key that may be shown: anything else may be a piece of a secret.
_KEY = re.compile(r"[a-z][a-z.]*")

#: Ends a key: whitespace, ``=`` or ``:`` that no backslash stands before.
_PAIR = re.compile(r"((?:[^\\ \t\f=:]|\\.)*)[ \t\f]*([=: \t\f]|$)[ \t\f]*(.*)", re.DOTALL)

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read(path: str) -> dict[str, str]:
    """Return the settings of the file at ``path``; raise as :func:`parse`, also when the file cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read(), path)
    except OSError as e:
        raise InvalidOption(
            f"--command-config {path} cannot be read ({e.strerror})", "Correct the path of --command-config"
        ) from e
    except UnicodeDecodeError as e:
        raise InvalidOption(f"--command-config {path} is not text in UTF-8", f"Save {path} as UTF-8") from e


def parse(text: str, name: str) -> dict[str, str]:
    """Return the settings in ``text`` as options of a connection, with the prefix ``kafka.``.

    Parameters
    ----------
    name : str
        The file, for errors.

    Raises
    ------
    InvalidOption
        With the number of the line.
    """
    found = {}
    for number, line in _lines(text):
        where = f"{name}, line {number}"
        match = _PAIR.fullmatch(line)
        assert match is not None  # the value takes everything
        key, separator, value = match.groups()
        key = _plain(key, where)
        if not separator:
            raise InvalidOption(f"{where}: there is no '=' between a setting and its value", f"Correct line {number}")
        if key not in OPTIONS:
            shown = key if _KEY.fullmatch(key) else "its key"
            raise InvalidOption(
                f"{where}: {shown} is not a setting that exactly-once supports",
                did_you_mean(key, OPTIONS) or f"Remove line {number}, or use one of {', '.join(sorted(OPTIONS))}",
            )
        found[f"kafka.{key}"] = _plain(value, where)
    return found


def merge(environment: Mapping[str, str], file: Mapping[str, str], servers: str | None) -> dict[str, str]:
    """Return the options of the connection: a flag wins over the file, the file over the environment.

    The settings below ``sasl.`` come from one place, and so do those below ``ssl.``: the name of one principal never
    meets the password of another.
    """
    replaced = tuple(group for group in _GROUPS if any(option.startswith(group) for option in file))
    kept = {option: value for option, value in environment.items() if not option.startswith(replaced)}
    return {**kept, **file, **({_SERVERS: servers} if servers else {})}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line, with the number of the first of its lines; a backslash at the end continues a line."""
    begun, whole = 0, ""
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = raw.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        begun = begun or number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            whole += line[:-1]
            continue
        yield begun, whole + line
        begun, whole = 0, ""
    if begun and whole:
        yield begun, whole


def _plain(text: str, where: str) -> str:
    """Return ``text`` without its escapes."""

    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise InvalidOption(
                f"{where}: \\u is not followed by four hexadecimal digits",
                "Write each literal backslash as two backslashes",
            )
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _NAMED.get(escape, escape)

    units = _ESCAPE.sub(character, text)
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
