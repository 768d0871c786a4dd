"""A broker that authorizes: everything is forbidden that no ACL allows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.ports import HOST, free_port
from testkit.broker import FAST_TIME_OUTS
from testkit.processes import until
from testkit.secure import SecureBroker
from testkit.tokens import TokenBroker

#: The one who may do nothing but what a test grants.
USER, PASSWORD = "stream", "stream-secret"


class Right(NamedTuple):
    """One ACL of :data:`USER`: ``prefixed`` when ``name`` is the beginning of the resource's name."""

    operation: str
    resource: str
    name: str
    prefixed: bool = False


#: Everything is forbidden that no ACL allows, save to nobody: who comes in by the plain listener.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Granting:
    """Gives rights on a broker with :data:`AUTHORIZER`."""

    bootstrap_servers: str

    def grant(self, rights: Iterable[Right], principal: str = f"User:{USER}") -> None:
        """Let ``principal`` do these things and nothing else, and nobody anything besides."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        whatever: Any = None  # matches every name, principal and host; its type says str alone
        everything = AclBindingFilter(
            ResourceType.ANY,
            whatever,
            ResourcePatternType.ANY,
            whatever,
            whatever,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for deleted in admin.delete_acls([everything]).values():
            deleted.result(30)
        bindings = [_binding(right, principal) for right in rights]
        for created in admin.create_acls(bindings).values():
            created.result(30)
        until(
            "the broker knows the rights", lambda: len(admin.describe_acls(everything).result(30)) == len(bindings), 30
        )


class AuthorizingBroker(Granting, EmbeddedBroker):
    """One node with two doors: nobody (the super user) comes in by ``bootstrap_servers``, :data:`USER` by a listener
    of its own.
    """

    def __init__(self, data_dir: Path):
        super().__init__(data_dir)
        self._door = free_port()

    @property
    def connection(self) -> Connection:
        """The connection of :data:`USER`."""
        return Connection(f"{HOST}:{self._door}", "SASL_PLAINTEXT", "PLAIN", USER, PASSWORD)

    def _settings(self, number: int) -> dict[str, str]:
        settings = super()._settings(number)
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            **settings,
            **FAST_TIME_OUTS,
            "listeners": f"{settings['listeners']},CLIENT://{HOST}:{self._door}",
            "listener.security.protocol.map": f"{settings['listener.security.protocol.map']},CLIENT:SASL_PLAINTEXT",
            "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": f'{login} required user_{USER}="{PASSWORD}";',
            **AUTHORIZER,
        }


class SecureAuthorizingBroker(Granting, SecureBroker):
    """Whoever comes in by TLS, with a password or a certificate, may do what was granted."""

    def _settings(self, number: int) -> dict[str, str]:
        return {**super()._settings(number), **AUTHORIZER}


class TokenAuthorizingBroker(Granting, TokenBroker):
    """Whoever comes in with a token may do what was granted."""

    def _settings(self, number: int) -> dict[str, str]:
        return {**super()._settings(number), **AUTHORIZER}


def _binding(right: Right, principal: str) -> AclBinding:
    return AclBinding(
        ResourceType[right.resource],
        right.name,
        ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL,
        principal,
        "*",
        AclOperation[right.operation],
        AclPermissionType.ALLOW,
    )
