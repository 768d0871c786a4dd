"""Trust and key stores that are no PEM files: PEM as text in the options, and Java's key stores.

Only Java reads its key stores. It says what they hold as PEM (``KeyStores.java``): Spark's JVM with the options of a
query; where there is none, a ``java`` that is started for it. That text stays in memory.
"""

from __future__ import annotations

import base64
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from exactly_once.errors import InvalidOption

TRUST, IDENTITY = "ssl.truststore", "ssl.keystore"
KEY_PASSWORD = "ssl.key.password"

#: Options with PEM as text.
CERTIFICATES, CHAIN, KEY = f"{TRUST}.certificates", f"{IDENTITY}.certificate.chain", f"{IDENTITY}.key"
_TEXTS = {TRUST: (CERTIFICATES,), IDENTITY: (CHAIN, KEY)}

#: Option names, without ``kafka.``.
OPTIONS = (
    *(f"{store}.{what}" for store in (TRUST, IDENTITY) for what in ("location", "type", "password")),
    *(CERTIFICATES, CHAIN, KEY, KEY_PASSWORD),
)

#: Options of these that hold a secret.
SECRETS = (f"{TRUST}.password", f"{IDENTITY}.password", KEY, KEY_PASSWORD)

#: Pattern of one certificate or key; Java also takes one whose lines were joined by spaces.
_BLOCK = re.compile(r"-+BEGIN ([A-Z0-9 ]+)-+\s+([A-Za-z0-9+/=\s]+)-+END \1-+")
_CERTIFICATE = ("CERTIFICATE", "X509 CERTIFICATE")
_PRIVATE_KEY = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")

#: The sink's jar, which has the class that reads the stores.
_JAR = Path(__file__).parents[1] / "spark" / "exactly-once-spark.jar"
#: Longest wait for a JVM of its own, which reads a store within a second.
_JAVA_S = 60.0


@dataclass(frozen=True)
class Stores:
    """Whom a client trusts, and who it is, as PEM texts; "" for what is in a file, or not given.

    ``options`` are those that tell Java's clients so, as the user gave them. Nothing of this is in ``repr``.
    """

    trust: str = field(default="", repr=False)
    chain: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)


NO_STORES = Stores()


def parse(options: Mapping[str, str], tls: bool, pem: Mapping[str, str] | None = None) -> Stores:
    """Read options without ``kafka.``, but for PEM files. Without ``tls``, no client reads a store. ``pem`` is what
    Spark's JVM said of Java's key stores; without it, a ``java`` is started for them. Raise InvalidOption when two
    options contradict each other, a text is not PEM, or a store cannot be read.
    """
    texts: dict[str, str] = {}
    if tls:
        for store in (TRUST, IDENTITY):
            _check(store, options)
        texts["trust"] = _pem(CERTIFICATES, options, _CERTIFICATE)
        texts["chain"] = _pem(CHAIN, options, _CERTIFICATE)
        texts["key"] = _pem(KEY, options, _PRIVATE_KEY)
        if any(is_javas(store, options) for store in (TRUST, IDENTITY)):
            texts |= _ask(options) if pem is None else _held(pem)
    return Stores(**texts, options=tuple(_of_java(options).items()))


def file_of(store: str, options: Mapping[str, str]) -> str | None:
    """Return the PEM file of a store, None where it has another form."""
    return options.get(f"{store}.location") or None if _is_pem(store, options) else None


def is_javas(store: str, options: Mapping[str, str]) -> bool:
    """Return whether ``store`` is a file that only Java reads: JKS, as without a type, or PKCS12."""
    return bool(options.get(f"{store}.location")) and not _is_pem(store, options)


@contextmanager
def as_file(text: str) -> Iterator[str]:
    """Yield a file with ``text`` that its owner alone can read, and remove it: OpenSSL takes a key from files only."""
    with tempfile.NamedTemporaryFile("w", prefix="exactly-once-", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


def unusable(store: str, given: Mapping[str, str], e: OSError) -> InvalidOption:
    """Make the error for what OpenSSL refuses; ``given`` are :attr:`Stores.options`."""
    location = f"{store}.location"
    password = f"kafka.{KEY_PASSWORD} to the password of the private key in it, if it has one"
    if location in given:
        return InvalidOption(
            f"kafka.{location}={given[location]} holds what OpenSSL refuses, which the driver's Python uses ({e})",
            "Renew certificate and key: OpenSSL wants 2,048 bits of RSA and a signature by SHA-256 at least",
        )
    if (text := _TEXTS[store][-1]) in given:
        return InvalidOption(f"kafka.{text} cannot be used ({e})", f"Correct it, and set {password}")
    return InvalidOption(
        f"kafka.{location} cannot be used on this host ({e})",
        f"Set kafka.{location} to a PEM file that driver and executors can read, and {password}. Of a Java key store, "
        f"set kafka.{store}.type to JKS or PKCS12",
    )


def _is_pem(store: str, options: Mapping[str, str]) -> bool:
    return options.get(f"{store}.type", "JKS").upper() == "PEM"


def _of_java(options: Mapping[str, str]) -> dict[str, str]:
    """Return what Java's clients must be told: all of a store that is no PEM file, as it was given."""
    found: dict[str, str] = {}
    for store in (TRUST, IDENTITY):
        given = {name: options[name] for name in OPTIONS if name.startswith(store) and name in options}
        if file_of(store, options) is None and given.keys() - {f"{store}.type"}:
            # Java knows no other spelling of PEM
            found |= given | ({f"{store}.type": "PEM"} if _is_pem(store, options) else {})
    if is_javas(IDENTITY, options) and KEY_PASSWORD in options:
        found[KEY_PASSWORD] = options[KEY_PASSWORD]
    return found


def _check(store: str, options: Mapping[str, str]) -> None:
    """Refuse what Java's client refuses, before it does: options of a store that contradict each other."""
    location, kind, password = (f"{store}.{what}" for what in ("location", "type", "password"))
    texts = [name for name in _TEXTS[store] if options.get(name)]
    missing = [name for name in _TEXTS[store] if name not in texts]
    if texts and not _is_pem(store, options):
        given = options.get(kind, "JKS, as without a type")
        raise InvalidOption(f"kafka.{texts[0]} is PEM, but kafka.{kind} is {given}", f"Set kafka.{kind}=PEM")
    if texts and options.get(location):
        raise InvalidOption(f"kafka.{texts[0]} and kafka.{location} are both set", "Remove one of the two options")
    if texts and missing:
        raise InvalidOption(f"kafka.{missing[0]} is missing beside kafka.{texts[0]}", f"Set kafka.{missing[0]}")
    if password in options and _is_pem(store, options):
        raise InvalidOption(
            f"kafka.{password} cannot be combined with kafka.{kind}=PEM",
            f"Remove the option; a private key in PEM has its password in kafka.{KEY_PASSWORD}",
        )
    if password in options and not options.get(location):
        raise InvalidOption(
            f"kafka.{password} is set, but kafka.{location} is not", f"Set kafka.{location}, or remove the password"
        )


def _pem(option: str, options: Mapping[str, str], kinds: tuple[str, ...]) -> str:
    """Return the blocks of these ``kinds`` in the lines that OpenSSL wants; "" for an option that is not set."""
    text = options.get(option, "")
    blocks = [(kind, "".join(body.split())) for kind, body in _BLOCK.findall(text) if kind in kinds]
    if text and not blocks:
        what = "certificate" if kinds is _CERTIFICATE else "private key"
        make = "" if kinds is _CERTIFICATE else "; openssl pkcs8 -topk8 -nocrypt -in key.pem makes it of another form"
        raise InvalidOption(
            f"kafka.{option} holds no {what} in PEM", f"Set it to a text with -----BEGIN {kinds[0]}-----{make}"
        )
    lines = ((kind, "\n".join(re.findall(".{1,64}", body))) for kind, body in blocks)
    return "".join(f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n" for kind, body in lines)


# -- what Java says of its stores --------------------------------------------------------------------------------------


def _held(said: Mapping[str, str]) -> dict[str, str]:
    """Return the texts in what Java said; raise InvalidOption when that is why it cannot read a store."""
    if "what" in said:
        raise InvalidOption(said["what"], said["way_out"])
    return {name: said[name] for name in ("trust", "chain", "key") if name in said}


def _ask(options: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of Java's stores; the same ones again while neither options nor files have changed."""
    stores = [store for store in (TRUST, IDENTITY) if is_javas(store, options)]
    given = {f"kafka.{name}": options[name] for name in ("security.protocol", *OPTIONS) if name in options}
    return _told(tuple(given.items()), tuple(_mark(options[f"{store}.location"]) for store in stores))


def _mark(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    return None


@functools.lru_cache(maxsize=8)  # the cache keeps no errors
def _told(given: tuple[tuple[str, str], ...], marks: object) -> dict[str, str]:
    """Ask a JVM of our own, which reads passwords from its input: a command line is open to everybody."""
    options = {name.removeprefix("kafka."): value for name, value in given}
    java = _java()
    if java is None:
        raise _unread(options, "there is no Java here")
    command = [java, "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-cp", str(_JAR), "exactlyonce.border.KeyStores"]
    asked = "".join(f"{name} {base64.b64encode(value.encode()).decode()}\n" for name, value in given)
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=_JAVA_S)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise _unread(options, f"{java} does not run ({type(e).__name__})") from None
    if done.returncode:
        said = (done.stderr.splitlines() or [""])[-1].strip()  # the first one may be JAVA_TOOL_OPTIONS
        raise _unread(options, f"{java} ended with {done.returncode} ({said})")
    lines = (line.split(" ", 1) for line in done.stdout.splitlines())
    return _held({name: base64.b64decode(value).decode() for name, value in lines})


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=os.path.join(home, "bin") if home else None)


def _unread(options: Mapping[str, str], why: str) -> InvalidOption:
    store = next(store for store in (TRUST, IDENTITY) if is_javas(store, options))
    location = options[f"{store}.location"]
    export = f"keytool -list -rfc -keystore {location} > store.pem"
    if store == IDENTITY:
        export = (
            f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12; "
            "openssl pkcs12 -in store.p12 -nodes -out store.pem"
        )
    return InvalidOption(
        f"kafka.{store}.location={location} is a Java key store, which only Java reads, and {why}",
        f"Install Java 17 or newer, or set JAVA_HOME to one. Or convert the store elsewhere ({export}), and set "
        f"kafka.{store}.location=store.pem and kafka.{store}.type=PEM",
    )
