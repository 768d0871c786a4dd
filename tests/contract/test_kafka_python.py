"""The contract with kafka-python: what it does not publish and the engine uses all the same, and who may use it.

``make test-newest-kafka`` runs this file on the newest release.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.admin import KafkaAdminClient
from kafka.cluster import ClusterMetadata
from kafka.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    KafkaError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumberError,
    UnknownBrokerIdError,
)
from kafka.metrics import Metrics
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism
from kafka.net.sasl.gssapi import SaslMechanismGSSAPI
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import CoordinatorType

from exactly_once.kafka import asking
from testkit import syntax

ROOT = Path(__file__).parents[2]
ASKING = Path(asking.__file__)
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def client() -> Any:
    """A client as its constructor leaves it, which finds no broker."""
    made: list[Any] = []

    class Kept(KafkaAdminClient):
        def __init__(self, **configs: Any):
            made.append(self)
            super().__init__(**configs)

    with pytest.raises(KafkaError):
        Kept(bootstrap_servers=NOWHERE, bootstrap_timeout_ms=50)
    yield made[0]
    made[0]._client.close()
    made[0]._net.stop()


def takes(function: Any, *arguments: Any, **named: Any) -> bool:
    """Whether ``function`` can be called with such arguments."""
    inspect.signature(function).bind(*arguments, **named)
    return True


def _coordinators(client: Any) -> bool:
    """A mutable mapping by (type, id): what is taken out is asked for again."""
    cluster = client._manager.cluster
    answer = type("Coordinator", (), {"error_code": 0, "node_id": 3, "host": "h", "port": 1})
    cluster.add_coordinator(answer, CoordinatorType.TRANSACTION, "id", synthesize_node_id=False)
    known = cluster.get_coordinator("id", CoordinatorType.TRANSACTION)
    removed = cluster._coordinators.pop((CoordinatorType.TRANSACTION, "id"), None)
    return known == removed == 3 and cluster.get_coordinator("id", CoordinatorType.TRANSACTION) is None


#: Name -> whether it is what the engine takes it for.
PRIVATE: dict[str, Callable[[Any], bool]] = {
    "_client": lambda client: takes(client._client.close),
    "_net": lambda client: (
        takes(client._net.stop) and takes(client._net.run, lambda: None) and takes(client._net.sleep, 0.1)
    ),
    "_manager": lambda client: isinstance(client._manager, KafkaConnectionManager),
    "_find_coordinator_ids": lambda client: (
        inspect.iscoroutinefunction(client._find_coordinator_ids)
        and takes(client._find_coordinator_ids, ["id"], key_type=CoordinatorType.TRANSACTION)
        and takes(client._find_coordinator_ids, ["group"])
    ),
    "_coordinators": _coordinators,
}


#: What hangs on ``_manager``, under names without an underscore.
BEHIND_IT: dict[str, Callable[[KafkaConnectionManager], bool]] = {
    "call_soon": lambda manager: takes(manager.call_soon, lambda: None),
    "send": lambda manager: takes(manager.send, object(), node_id=1, request_timeout_ms=1_000),
    "get_connection": lambda manager: (
        takes(manager.get_connection, 1, timeout_ms=1_000) and isinstance(KafkaConnection.sasl_enabled, property)
    ),
    "wait_for": lambda manager: (
        inspect.iscoroutinefunction(manager.wait_for) and takes(manager.wait_for, object(), 1_000)
    ),
    "reset_backoff": lambda manager: takes(manager.reset_backoff, 1),
    "broker_version_data": lambda manager: takes(BrokerVersionData.api_version, None, object()),
    "cluster": lambda manager: (
        isinstance(manager.cluster, ClusterMetadata)
        and inspect.iscoroutinefunction(manager.cluster.refresh_metadata)
        and manager.cluster.brokers() == []
        and [b.host for b in manager.cluster.bootstrap_brokers()] == ["127.0.0.1"]
    ),
}

#: What kafka-python publishes, as the engine calls it.
PUBLISHED: dict[str, Callable[[Any], bool]] = {
    "describe_topics": lambda client: takes(client.describe_topics, ["t"]),
    "describe_metadata_quorum": lambda client: takes(client.describe_metadata_quorum),
    "get_broker_version_data": lambda client: takes(client.get_broker_version_data, 1),
    "describe_configs": lambda client: takes(client.describe_configs, [], config_filter="all"),
    "create_topics": lambda client: takes(client.create_topics, []),
    "list_partition_offsets": lambda client: takes(client.list_partition_offsets, {}, isolation_level="read_committed"),
    "list_transactions": lambda client: takes(
        client.list_transactions,
        broker_ids=[1],
        state_filters=[],
        producer_id_filters=[],
        transactional_id_pattern=".*",
    ),
    "list_groups": lambda client: takes(client.list_groups, broker_ids=[1]),
    "list_group_offsets": lambda client: takes(client.list_group_offsets, {"g": None}),
    "close": lambda client: takes(client.close),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_each_private_name_is_what_the_engine_takes_it_for(client: Any, name: str) -> None:
    """Mishap: a release that moves one of them stops every stream, at the first request of its kind."""
    assert PRIVATE[name](client), kafka.__version__


@pytest.mark.parametrize("name", BEHIND_IT)
def test_each_name_behind_the_manager_is_too(client: Any, name: str) -> None:
    assert hasattr(client._manager, name) and BEHIND_IT[name](client._manager), kafka.__version__


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_published_method_takes_the_engine_s_arguments(client: Any, name: str) -> None:
    assert PUBLISHED[name](client), kafka.__version__


def test_a_question_is_run_and_a_broken_one_raises_its_own_error(client: Any) -> None:
    """By run(), and by call_soon() and run() together: as begins_of asks several leaders at once."""

    async def answer() -> int:
        return 7

    async def broken() -> int:
        raise UnknownBrokerIdError(3)

    asked = client._manager.call_soon(answer)
    assert client._net.run(answer) == 7 == client._net.run(lambda: asked)
    with pytest.raises(UnknownBrokerIdError):
        client._net.run(broken)


def test_a_broker_that_nobody_knows_raises_before_anything_is_sent(client: Any) -> None:
    """Asking.call looks at the cluster again on this very error."""
    with pytest.raises(UnknownBrokerIdError):
        client._manager.send(object(), node_id=4711)
    assert not UnknownBrokerIdError.retriable


def test_what_may_pass_is_still_called_retriable() -> None:
    """Mishap: a release that no longer calls an error one that may pass, or calls one so that may not."""
    passing = (NotLeaderForPartitionError, NotEnoughReplicasError, ConcurrentTransactionsError, NotCoordinatorError)
    assert all(kind().retriable for kind in passing)
    assert not InvalidProducerEpochError().retriable and not OutOfOrderSequenceNumberError().retriable


def test_a_token_provider_is_what_the_engine_registers() -> None:
    """Mishap: a release that moves the class, or asks a provider for more, stops every client that logs in by token."""
    assert AbstractTokenProvider.__abstractmethods__ == {"token"}
    assert {name for name in vars(AbstractTokenProvider) if not name.startswith("_")} == {"token", "extensions"}
    assert KafkaAdminClient.DEFAULT_CONFIG["sasl_oauth_token_provider"] is None


def test_a_login_is_what_the_engine_registers_for_kerberos() -> None:
    """Mishap: a release that moves the registry, or drives a login otherwise, stops every client of Kerberos."""
    assert takes(register_sasl_mechanism, "GSSAPI", object(), overwrite=True)
    told = {"auth_bytes", "receive", "is_done", "is_authenticated"}
    assert SaslMechanism.__abstractmethods__ == {"__init__", *told}
    assert {name for name in vars(SaslMechanism) if not name.startswith("_")} == {*told, "auth_details"}
    assert KafkaAdminClient.DEFAULT_CONFIG["sasl_kerberos_name"] is None
    assert takes(SaslMechanismGSSAPI, host="h", sasl_mechanism="GSSAPI")


# -- who may use it ---------------------------------------------------------------------------------------------------


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each attribute with one leading underscore that an object of its own does not have.

    Not librdkafka's constants (``KafkaError._TRANSPORT``), and not what a NamedTuple publishes.
    """
    published = {"_replace", "_asdict", "_fields", "_make"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            own = ast.unparse(node.value) in ("self", "cls", "super()")
            if not own and not node.attr.isupper() and node.attr not in published:
                yield node.lineno, node.attr


def imports(tree: ast.AST) -> dict[str, str]:
    """Name -> module of each ``from module import name``."""
    froms = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom))
    return {a.asname or a.name: n.module or "" for n in froms for a in n.names}


def test_only_the_file_that_asks_touches_what_kafka_python_does_not_publish() -> None:
    """Mishap: an upgrade of the client breaks in ten places, one of which is found in production.

    In files that know kafka-python or the Admin no foreign private name at all is allowed, in the others none of the
    contract's.
    """
    found = {}
    for folder in (*syntax.PACKAGES, "dev/benchmarks"):
        for path in ROOT.joinpath(folder).rglob("*.py"):
            if path == ASKING:
                continue
            tree = ast.parse(path.read_text())
            imported = imports(tree)
            theirs = {name for name, module in imported.items() if module.split(".")[0] == "kafka"}
            known = theirs or {"exactly_once.kafka.admin", "exactly_once.kafka.asking"} & set(imported.values())
            touched = {name for _, name in private_names(tree) if known or name in PRIVATE}
            touched |= {name for name in theirs if name.startswith("_")}
            touched |= {ast.unparse(b) for n in ast.walk(tree) if isinstance(n, ast.ClassDef) for b in n.bases} & theirs
            if touched:
                found[str(path.relative_to(ROOT))] = touched
    assert found == {}


def test_what_the_file_that_asks_touches_is_in_the_contract_above() -> None:
    tree = ast.parse(ASKING.read_text())
    own = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    of_self = {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and n.attr.startswith("_") and isinstance(n.value, ast.Name)
    }
    of_others = {name for _, name in private_names(tree)}
    touched = (
        {n for n in of_self | of_others if not n.startswith("__")}
        - own
        - {"_beside", "_give_back", "_first", "_failed", "_seen_s", "_adding"}
    )
    assert touched == set(PRIVATE)


def test_what_the_engine_calls_of_the_client_is_in_the_contract_above() -> None:
    called = {
        node.attr
        for room in ("kafka", "txn", "commitlog")
        for path in ROOT.joinpath("exactly_once", room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "client"
        and not node.attr.startswith("_")
    }
    assert called == set(PUBLISHED)


def test_a_network_without_metrics_measures_nothing() -> None:
    """Each request would record a dozen figures that nobody reads, in the time in which a batch waits."""
    made = asking._unmeasured(metrics=Metrics(), bootstrap_servers="127.0.0.1:1")
    assert made._manager.config["metrics"] is None and made._manager._sensors is None
    assert "kafka_client" in KafkaAdminClient.DEFAULT_CONFIG
