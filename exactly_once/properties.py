"""The text of a properties file, read as Java reads it (``java.util.Properties``)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from exactly_once.errors import InvalidOption

#: Pattern of a line. Whitespace, ``=`` or ``:`` that no backslash stands before ends its key.
_PAIR = re.compile(r"((?:[^\\ \t\f=:]|\\.)*)[ \t\f]*([=: \t\f]|$)[ \t\f]*(.*)", re.DOTALL)

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def pairs(text: str, name: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the number of the line, key, separator and value of each setting in the file ``name``; raise
    InvalidOption, with the number of the line, where Java cannot read it.
    """
    for number, line in _lines(text):
        match = _PAIR.fullmatch(line)
        assert match is not None  # the value takes everything
        key, separator, value = match.groups()
        where = f"{name}, line {number}"
        yield number, _plain(key, where), separator, _plain(value, where)


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
