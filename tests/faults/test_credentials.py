"""Rights revoked and credentials expired while a stream runs: nothing is lost, the error says what is missing, and the
next start goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from exactly_once.kafka.connection import Connection
from testkit import tokens
from testkit.authorizing import AuthorizingBroker
from testkit.fixtures import Bench, make_bench
from testkit.processes import until
from testkit.secure import CERTIFICATE, SCRAM, USER, SecureBroker
from testkit.stream import Run, SparkDriver
from testkit.tokens import ENDPOINT, TokenBroker, TokenEndpoint
from tests.integration.test_rights import Row, granted, named, table

STREAM = table("tasks", "driver")

#: Between these a stream needs every connection and every right again.
REVOKED = [row for row in STREAM if row.needed and row.operation != "CREATE"]


def bench_of(servers: str, connection: Connection, folder: Path) -> Bench:
    """A bench whose stream comes in by ``connection``; the test looks at it as the super user."""
    bench = make_bench(Connection(servers), folder, parts=2, rows=20)
    return replace(bench, job=replace(bench.job, options={**bench.job.options, **connection.spark()}))


@contextmanager
def running(bench: Bench, driver: SparkDriver) -> Iterator[Run]:
    """The stream, with its first batch committed."""
    bench.input.add()
    run = driver.start(bench.job.until_stopped())
    try:
        run.await_commit(0)
        yield run
    finally:
        if not run.has_ended():
            run.stop()()


@pytest.fixture(scope="module")
def authorizing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizingBroker]:
    with AuthorizingBroker(tmp_path_factory.mktemp("authorizing")) as broker:
        yield broker


@pytest.mark.long
@pytest.mark.parametrize("row", REVOKED, ids=[f"{row.operation} {row.on}" for row in REVOKED])
def test_a_right_that_is_revoked_stops_the_stream_and_costs_nothing(
    row: Row, authorizing: AuthorizingBroker, warm: SparkDriver, tmp_path: Path
) -> None:
    """Loss: a task whose records nobody takes, and a batch that is decided without them."""
    bench = bench_of(authorizing.bootstrap_servers, authorizing.connection, tmp_path)
    authorizing.grant(granted(bench.sink_id, bench.topic, STREAM))
    implied = ("READ",) if row.operation == "WRITE" and "topic: each output" in row.on else ()
    rest = [r for r in STREAM if r != row and (r.on != row.on or r.operation not in implied)]
    with running(bench, warm) as run:
        authorizing.grant(granted(bench.sink_id, bench.topic, rest))
        bench.input.add()
        if row.operation == "READ":  # a driver knows what its log says; the next application's start has to read it
            run.await_commit(1)
        else:
            ended = run.end().with_code("EO-DENIED")
            assert row.operation in ended.sentence and named(row, bench.sink_id, bench.topic) in ended.sentence
    authorizing.grant(granted(bench.sink_id, bench.topic, STREAM))
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
def test_a_right_that_is_revoked_behind_the_decision_leaves_the_batch_decided(
    authorizing: AuthorizingBroker, warm: SparkDriver, tmp_path: Path
) -> None:
    """Duplicates: a batch that may not be committed, and is written again."""
    bench = bench_of(authorizing.bootstrap_servers, authorizing.connection, tmp_path)
    authorizing.grant(granted(bench.sink_id, bench.topic, STREAM))
    ids = next(row for row in STREAM if row.on.startswith("transactional ids"))
    with running(bench, warm) as run:
        warm.arm("decided", "sleep 3")
        bench.input.add()
        run.await_true("the decision", lambda: warm.has_reached("decided"))
        authorizing.grant(granted(bench.sink_id, bench.topic, [row for row in STREAM if row != ids]))
        ended = run.end()
    assert ended.code == "EO-DENIED" and "is decided" in ended.sentence, ended.failure
    for fact in ("Grant WRITE", "transactional ids that begin", f"'eo:{bench.sink_id}:'"):
        assert fact in ended.sentence
    assert len(bench.visible()) == 40, "of the first batch"
    authorizing.grant(granted(bench.sink_id, bench.topic, STREAM))
    bench.complete_exactly_once(warm, batches=0)


# -- credentials -------------------------------------------------------------------------------------------------------

#: The first batch takes some seconds of it on a busy machine.
CERTIFICATE_LASTS = timedelta(seconds=40)

#: The brokers end a connection whose client does not log in again within this time (KIP-368).
REAUTH_MS = 3_000


class RotatingBroker(SecureBroker):
    """Its users' connections end with their credentials, and not long after."""

    def _settings(self, number: int) -> dict[str, str]:
        limit = "listener.name.scrams.scram-sha-512.connections.max.reauth.ms"
        return super()._settings(number) | {limit: str(REAUTH_MS)}

    def set_password(self, password: str) -> None:
        """Change the user's password."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        for made in admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(USER, credentials, password.encode())]
        ).values():
            made.result(30)


@pytest.mark.long
def test_a_password_that_is_changed_stops_the_stream_until_it_gets_the_new_one(
    warm: SparkDriver, tmp_path: Path
) -> None:
    """Outage: a rotation on a Sunday, an error about the network, and a restart that tries the old password forever."""
    broker = RotatingBroker(tmp_path / "broker")
    try:
        broker.start()
        bench = bench_of(broker.bootstrap_servers, broker.connection(SCRAM), tmp_path / "bench")
        with running(bench, warm) as run:
            for batch in (1, 2):  # connections end in between, with the password that is still right
                time.sleep(REAUTH_MS / 1000)
                bench.input.add()
                run.await_commit(batch)
            broker.set_password("another-one")
            time.sleep(2 * REAUTH_MS / 1000)
            bench.input.add()
            ended = run.end()
        assert ended.code == "EO-DENIED" and "credentials" in ended.sentence, ended.failure
        renewed = {**bench.job.options, **broker.connection(SCRAM, "another-one").spark()}
        bench.complete_exactly_once(warm, replace(bench.job, options=renewed), batches=0)
    finally:
        broker.kill()
        broker.stop()


@pytest.mark.long
def test_a_certificate_that_runs_out_stops_the_stream_until_it_gets_a_new_one(
    warm: SparkDriver, tmp_path: Path
) -> None:
    """Outage: brokers look at a certificate when a connection is made, so one that has run out ends a stream at their
    next restart, with an error about the network that is restarted forever.
    """
    broker = SecureBroker(tmp_path / "broker")
    try:
        broker.start()
        ends = broker.renew_certificate(CERTIFICATE_LASTS)
        bench = bench_of(broker.bootstrap_servers, broker.connection(CERTIFICATE), tmp_path / "bench")
        with running(bench, warm) as run:
            until("the end of the certificate", lambda: datetime.now(UTC) > ends, CERTIFICATE_LASTS.total_seconds() + 5)
            broker.kill()
            broker.restart()
            bench.input.add()
            ended = run.end()
        assert ended.code == "EO-DENIED" and "Renew the client's certificate" in ended.failure, ended.failure
        broker.renew_certificate()
        bench.complete_exactly_once(warm, batches=0)
    finally:
        broker.kill()
        broker.stop()


@pytest.mark.long
def test_tokens_of_seconds_carry_a_stream_and_without_new_ones_it_stops(
    warm: SparkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outage: a stream that ends with its first token. Loss: one that goes on half-way when there is no other."""
    monkeypatch.setattr(tokens, "TTL_S", 4.0)
    with TokenBroker(tmp_path / "broker") as broker, TokenEndpoint() as endpoint:
        connection = broker.connection(ENDPOINT, endpoint)
        bench = bench_of(broker.bootstrap_servers, connection, tmp_path / "bench")
        with running(bench, warm) as run:
            began, asked = time.monotonic(), len(endpoint.asked)
            for batch in range(1, 5):
                time.sleep(2.5)
                bench.input.add()
                run.await_commit(batch)
            assert time.monotonic() - began > 8 and len(endpoint.asked) - asked >= 2
            endpoint.status = 401
            time.sleep(6)
            bench.input.add()
            ended = run.end()
        who = "invalid_client", "invalid_token"  # the endpoint refuses the client, or the broker its last token
        assert ended.code == "EO-DENIED" and any(w in ended.sentence for w in who), ended.failure
        endpoint.status = 200
        bench.complete_exactly_once(warm, batches=0)
        broker.kill()
