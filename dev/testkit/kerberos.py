"""Logging in with Kerberos: a KDC of MIT's on this machine, and a broker that takes its tickets."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.ports import HOST, free_port
from testkit.broker import FAST_TIME_OUTS
from testkit.processes import until

REALM, USER, SERVICE = "TESTS.LOCAL", "writer", "kafka"

#: The broker's name in tickets: Java looks up the name of an address, and asks for a ticket for that.
_NAME = "localhost"
_BROKER = f"{SERVICE}/{_NAME}"

#: Its programs; Debian's packages krb5-kdc, krb5-admin-server and krb5-user have them.
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))

ROOT = Path(__file__).parents[2]
_MODULE = "com.sun.security.auth.module.Krb5LoginModule required"


def missing() -> str:
    """Return what this machine lacks for Kerberos, "" for nothing."""
    lacks = [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]
    return ", ".join(lacks + ([] if find_spec("gssapi") else ["the package gssapi"]))


class Kdc:
    """A KDC with the principals of :data:`USER` and of the broker on this machine; a context manager.

    Parameters
    ----------
    folder : Path
        For its settings, its database and the keytabs.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._port = folder, free_port(set())
        self._process: subprocess.Popen[bytes] | None = None
        self.configuration = self.configured("krb5.conf")
        self._profile = folder / "kdc.conf"
        where = f"{HOST}:{self._port}"
        self._profile.write_text(
            f"[kdcdefaults]\n kdc_listen = {where}\n kdc_tcp_listen = {where}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n }}\n"
            f"[logging]\n kdc = FILE:{folder}/kdc.log\n"
        )

    def configured(self, name: str, ticket_lifetime_s: int = 3600) -> Path:
        """Return a krb5.conf, of this name, whose clients ask for tickets that live so long."""
        path = self._folder / name
        path.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n ticket_lifetime = {ticket_lifetime_s}s\n"
            " dns_lookup_kdc = false\n dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = {HOST}:{self._port}\n }}\n"
        )
        return path

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which Python, with gssapi, and Java find this KDC, and no ticket of this machine's user."""
        gssapi = find_spec("gssapi")
        assert gssapi and gssapi.origin
        return {
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(gssapi.origin).parents[1]))),
            "KRB5_CONFIG": str(self.configuration),
            "KRB5CCNAME": f"FILE:{self._folder}/none",
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self.configuration}",
        }

    def __enter__(self) -> Self:
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        for principal in (USER, _BROKER):
            self._run("kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
            self._run("kadmin.local", "-r", REALM, "ktadd", "-k", str(self.keytab(principal)), principal)
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start it, and wait until it listens."""
        log = self._folder / "kdc.log"
        log.unlink(missing_ok=True)
        self._process = subprocess.Popen([self._program("krb5kdc"), "-n", "-r", REALM], env=self._variables)
        until("the KDC", lambda: log.exists() and "commencing operation" in log.read_text())
        return self

    def stop(self) -> None:
        """Kill it; it can be started again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def keytab(self, principal: str = USER) -> Path:
        """Return the file with the keys of a principal."""
        return self._folder / f"{principal.replace('/', '-')}.keytab"

    def tickets(self, name: str, lifetime_s: int = 3600) -> Path:
        """Return a ticket cache, of this name, of :data:`USER`."""
        cache = self._folder / name
        self._run("kinit", "-l", f"{lifetime_s}s", "-c", f"FILE:{cache}", "-k", "-t", str(self.keytab()), USER)
        return cache

    def by_keytab(self, principal: str = f"{USER}@{REALM}", keytab: Path | None = None) -> str:
        """Return a JAAS configuration that logs in with a keytab."""
        file = keytab or self.keytab()
        return f'{_MODULE} useKeyTab=true storeKey=true keyTab="{file}" principal="{principal}";'

    def by_tickets(self, cache: Path) -> str:
        """Return a JAAS configuration that logs in with a ticket cache."""
        return f'{_MODULE} useTicketCache=true ticketCache="{cache}";'

    @property
    def _variables(self) -> dict[str, str]:
        return {**os.environ, **self.environment, "KRB5_KDC_PROFILE": str(self._profile)}

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=_PATH)
        assert found, name
        return found

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([self._program(program), *arguments], env=self._variables, capture_output=True, check=True)


class KerberosBroker(EmbeddedBroker):
    """One node with a listener for tickets of ``kdc`` beside the plain one, over which the cluster is set up."""

    def __init__(self, data_dir: Path, kdc: Kdc):
        super().__init__(data_dir, properties=FAST_TIME_OUTS)
        self._kdc, self._tickets = kdc, 0
        self._java_options = f"-Djava.security.krb5.conf={kdc.configuration}"

    def options(self, login: str) -> dict[str, str]:
        """Return the options of a client that logs in by this JAAS configuration."""
        return {
            "kafka.bootstrap.servers": f"{_NAME}:{self._tickets}",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "GSSAPI",
            "kafka.sasl.kerberos.service.name": SERVICE,
            "kafka.sasl.jaas.config": login,
        }

    def _settings(self, number: int) -> dict[str, str]:
        settings = super()._settings(number)
        if not self._tickets:
            self._tickets = free_port({port for pair in self._ports.values() for port in pair})
        login = self._kdc.by_keytab(f"{_BROKER}@{REALM}", self._kdc.keytab(_BROKER))
        listener = "listener.name.tickets"
        return settings | {
            "listeners": f"{settings['listeners']},TICKETS://{_NAME}:{self._tickets}",
            "listener.security.protocol.map": settings["listener.security.protocol.map"] + ",TICKETS:SASL_PLAINTEXT",
            f"{listener}.sasl.enabled.mechanisms": "GSSAPI",
            f"{listener}.sasl.kerberos.service.name": SERVICE,
            f"{listener}.gssapi.sasl.jaas.config": login,
        }
