"""Secrets that tests plant, and the search for them in everything that was written."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import suppress
from pathlib import Path

from testkit.postgres import PASSWORD as DATABASE
from testkit.secure import KEY, PASSPHRASE, PASSWORD, STORE_PASSWORD, USER, pem_of

REGISTRY_USER, REGISTRY = "schemas", "registry-pass-9c1"
WEBHOOK = "T0PSECRET/B42/hook-3d"
WRONG = "wr0ng-secret-77"
#: A line of the private key in PEM that is no other key's.
KEY_LINE = pem_of(KEY).decode().splitlines()[2]


def spellings(secret: str) -> set[bytes]:
    """Return a secret as it may stand in a file: as it is, quoted by JSON or by JAAS, in Basic authentication."""
    found = {secret, json.dumps(secret)[1:-1], secret.replace('"', '\\"')}
    found |= {base64.b64encode(f"{user}:{secret}".encode()).decode() for user in (USER, REGISTRY_USER)}
    return {text.encode() for text in found}


#: What to look for -> whose secret it is.
PLANTED = {
    text: name
    for name, secret in {
        "the SASL password": PASSWORD,
        "the passphrase of the key": PASSPHRASE,
        "the password of the key stores": STORE_PASSWORD,
        "the private key": KEY_LINE,
        "the password of the registry": REGISTRY,
        "the password of the database": DATABASE,
        "the address of the webhook": WEBHOOK,
        "a wrong password": WRONG,
    }.items()
    for text in spellings(secret)
}


def planted_in(text: bytes | str) -> list[str]:
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    return [name for secret, name in PLANTED.items() if secret in raw]


def planted_below(folder: Path) -> dict[str, list[str]]:
    """Return, by file, what is found in it."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and (names := planted_in(path.read_bytes())):
                found[str(path.relative_to(folder))] = names
    return found


class CommandLines:
    """The command lines of all processes of this machine, while a test runs."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}
        self.seen: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    line = path.read_bytes()
                    if line not in self.seen:
                        self.seen.add(line)
                        if names := planted_in(line):
                            self.found[line.replace(b"\0", b" ").decode(errors="replace")] = names
