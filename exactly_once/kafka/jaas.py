"""The text of ``sasl.jaas.config``, read as Kafka's Java clients read it: by ``java.io.StreamTokenizer``, with the
settings of ``JaasConfig`` (kafka-clients 3.4 to 4.4).

Words stand bare or in either kind of quotes. Quoted ones have Java's escapes, octal ones among them, and end with their
line; bare ones have letters, digits and ``. - _ $`` and begin with no digit, dot or minus. Comments are ``//`` and
``/* */``, and a lone slash begins one, too. No error shows a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

from exactly_once.errors import InvalidOption

OPTION = "kafka.sasl.jaas.config"

#: Flags that say whether a module is needed, which nobody asks here: there is one.
_FLAGS = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")

_TOKEN = re.compile(
    r"""
    (?P<blank>[\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]*)
  | (?P<number>-?(?=[.0-9])[0-9]*\.?[0-9]*)  # it has no text
  | (?P<word>[A-Za-z\xa0-\U0010ffff_$][A-Za-z0-9\xa0-\U0010ffff_$.\-]*)
  | (?P<quoted>"(?:\\.|[^"\\\r\n])*"? | '(?:\\.|[^'\\\r\n])*'?)
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.DOTALL)
_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

#: Pattern of an option's name that may be shown: anything else may be a piece of a secret.
_NAME = re.compile(r"[A-Za-z_]{1,40}")

#: The login module of OpenJDK that is not Kafka's own.
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"

_MODULE = re.compile(r"(?:kafkashaded\.)?(?:org\.apache\.kafka\.common\.security\.)(.+)")
_WAY_OUT = 'Write ...LoginModule required username="..." password="...";'


class Login(NamedTuple):
    """One login module with its options.

    Attributes
    ----------
    module : str
        Its class below ``org.apache.kafka.common.security.``, such as ``plain.PlainLoginModule``, or
        :data:`KERBEROS`.
    """

    module: str
    options: dict[str, str]

    @property
    def names(self) -> str:
        """The names of the options, for errors."""
        return names(self.options)


def read(text: str) -> Login:
    """Return the login module that ``text`` names.

    Raises
    ------
    InvalidOption
        Java cannot read the text, or it names no login module, several, or one that is neither Kafka's own nor
        :data:`KERBEROS`.
    """
    logins = list(_entries(_tokens(text)))
    if len(logins) != 1:
        _refuse(f"names {len(logins) or 'no'} login modules, but a client has one")
    return logins[0]


def names(options: Iterable[str]) -> str:
    """Return the names of options, for errors."""
    return ", ".join(name for name in options if _NAME.fullmatch(name)) or "no option"


def word(name: str) -> str:
    """Return the name of an option, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z_][\w.]*", name, re.ASCII) else quoted(name)


def quoted(text: str | None) -> str:
    """Return ``text`` as a value of a login module's option: no quote, and no line's end, inside it ends it."""
    escaped = re.sub(r'(["\\])', r"\\\1", text or "")
    return f'"{escaped}"'.replace("\n", r"\n").replace("\r", r"\r")


class _Token(NamedTuple):
    """A token: what Java calls ``sval`` (None for a number and for a sign) and, for a sign, ``ttype``."""

    text: str | None
    sign: str = ""


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind, whole = match.lastgroup, match.group()
        if kind == "word":
            yield _Token(whole)
        elif kind == "quoted":
            yield _Token(_ESCAPE.sub(_character, whole[1 : -1 if _is_closed(whole) else None]))
        elif kind == "number":
            yield _Token(None)
        elif kind == "sign":
            yield _Token(None, whole)


def _is_closed(whole: str) -> bool:
    body = re.sub(r"\\.", "..", whole, flags=re.DOTALL)
    return len(body) > 1 and body[-1] == body[0]


def _character(escape: re.Match[str]) -> str:
    octal, other = escape.groups()
    return chr(int(octal, 8)) if octal else _NAMED.get(other, other)


def _entries(tokens: Iterator[_Token]) -> Iterator[Login]:
    for first in tokens:
        flag = next(tokens, _Token(None)).text
        if (flag or "").upper() not in _FLAGS:
            _refuse("has no 'required' behind the class of its login module")
        known = _MODULE.fullmatch(first.text or "")
        if known is None and first.text != KERBEROS:
            _refuse(f"{_shown(first.text)}, which the sink's Python clients do not have")
        yield Login(known[1] if known else KERBEROS, dict(_options(tokens)))


def _options(tokens: Iterator[_Token]) -> Iterator[tuple[str, str]]:
    """Yield the options of a module; ends behind its semicolon."""
    before = ""
    for token in tokens:
        if token.sign == ";":
            return
        if next(tokens, _Token(None)).sign != "=":
            _refuse(f"has no name=value behind {before or 'required'}", _IN_QUOTES)
        if (value := next(tokens, _Token(None)).text) is None:
            _refuse(f"has an option without a value behind {before or 'required'}", _IN_QUOTES)
        name = token.text or ""
        yield name, value
        before = name if _NAME.fullmatch(name) else "an option"
    _refuse("has no ';' at its end")


_IN_QUOTES = "Put each value into quotes, and a backslash before a quote or a backslash in it"


def _shown(module: str | None) -> str:
    named = module and re.fullmatch(r"[\w.$]*LoginModule", module)
    return f"names the login module {module}" if named else "begins with a word that is no login module"


def _refuse(why: str, way_out: str = _WAY_OUT) -> NoReturn:
    raise InvalidOption(f"{OPTION} {why}", way_out)
