"""Java key stores for tests, as users make them: by the ``keytool`` beside Spark's Java, and by OpenSSL."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from exactly_once.sparkenv.java import find_java


def trust_store(certificate: Path, store: Path, kind: str, password: str) -> Path:
    """Make ``store``, which trusts the certificate of a PEM file; return it."""
    name = ["-importcert", "-noprompt", "-alias", certificate.stem, "-file", str(certificate)]
    _keytool([*name, "-keystore", str(store), "-storetype", kind, "-storepass:env", "STORE"], STORE=password)
    return store


def key_store(identity: Path, store: Path, kind: str, password: str, key_password: str = "") -> Path:
    """Add to ``store`` the private key and the certificates of a PEM file, under the file's name; return it."""
    exported = store.with_name(f"{store.name}-{identity.stem}.p12")
    export = ["openssl", "pkcs12", "-export", "-in", str(identity), "-out", str(exported), "-name", identity.stem]
    _run([*export, "-passout", "env:STORE"], STORE=password)
    its = ["-srckeystore", str(exported), "-srcstoretype", "PKCS12", "-srcstorepass:env", "STORE"]
    its += ["-srcalias", identity.stem, "-destkeypass:env", "KEY"]
    to = ["-destkeystore", str(store), "-deststoretype", kind, "-deststorepass:env", "STORE"]
    _keytool(["-importkeystore", "-noprompt", *its, *to], STORE=password, KEY=key_password or password)
    return store


def _keytool(arguments: list[str], **passwords: str) -> None:
    _run([str(Path(find_java().executable).with_name("keytool")), *arguments], **passwords)


def _run(command: list[str], **passwords: str) -> None:
    """Run it with its passwords where no other process sees them."""
    done = subprocess.run(command, env={**os.environ, **passwords}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
