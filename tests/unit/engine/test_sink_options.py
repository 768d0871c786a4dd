"""Options of the sink in the configuration of a run."""

import pytest

from dagster_exactly_once.declare.config import StreamConfig
from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import OPTIONS
from exactly_once.options import SECRET_OPTIONS


@pytest.mark.parametrize("name", [*sorted(SECRET_OPTIONS), "Kafka.SASL.Password"])
def test_a_secret_in_the_launchpad_is_refused_and_not_repeated(name):
    """Leak: Dagster keeps the configuration of a run, and shows it to whoever may open the UI."""
    with pytest.raises(InvalidOption, match=f"EO-OPTION: sink_options holds {name}, a secret") as refused:
        StreamConfig(sink_options={name: "opensesame"}).checked_sink_options()
    assert "opensesame" not in str(refused.value)


@pytest.mark.parametrize("name", ["kafka.ssl.keystore.password", "kafka.ssl.truststore.password"])
@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_the_password_of_a_java_key_store_is_a_secret_too(name, spelled):
    """Leak: the run refused the option as one that the sink cannot honour, and did not say that Dagster keeps it."""
    with pytest.raises(InvalidOption, match="a secret: Dagster"):
        StreamConfig(sink_options={spelled(name): "opensesame"}).checked_sink_options()


def test_the_private_key_and_a_registry_with_a_login_in_its_address_are_secrets_too():
    """Leak: a URL is copied with its login, and an option's name does not tell."""
    for name, value in {
        "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
        "schema.registry.url": "https://a:8081,https://u:opensesame@b:8081/x",
    }.items():
        with pytest.raises(InvalidOption, match="a secret: Dagster") as refused:
            StreamConfig(sink_options={name: value}).checked_sink_options()
        assert "opensesame" not in str(refused.value)
    harmless = {"schema.registry.url": "https://a:8081/x@y"}
    assert StreamConfig(sink_options=harmless).checked_sink_options() == harmless


def test_other_options_pass():
    """Guards against a launchpad that takes nothing any more."""
    given = {"kafka.compression.type": "zstd", "kafka.linger.ms": "5"}
    assert StreamConfig(sink_options=given).checked_sink_options() == given


def test_every_option_of_a_connection_with_a_secret_is_known():
    """Leak: an option that was added, and is not in the list."""
    words = ("password", "secret", "jaas")
    assert {f"kafka.{o}" for o in OPTIONS if any(w in o for w in words)} <= SECRET_OPTIONS
