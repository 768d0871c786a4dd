"""The factory of transactional producers, field by field; its variables name the brokers of the deployment.

A field is the name of its variable, and Dagster looks the value up when a run starts. So its UI shows no secret.
"""

from __future__ import annotations

import os

import dagster as dg

from dagster_exactly_once import KafkaTransactionalProducerFactory


def producer_factory() -> KafkaTransactionalProducerFactory:
    """Return the factory: an op, or the feed, makes a producer with ``kafka.producer("its-transactional-id")``."""
    return KafkaTransactionalProducerFactory(
        bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"),
        security_protocol=_variable("KAFKA_SECURITY_PROTOCOL") or "PLAINTEXT",
        sasl_mechanism=_variable("KAFKA_SASL_MECHANISM"),
        sasl_username=_variable("KAFKA_SASL_USERNAME"),
        sasl_password=_variable("KAFKA_SASL_PASSWORD"),
        sasl_jaas_config=_variable("KAFKA_SASL_JAAS_CONFIG"),
        sasl_kerberos_service_name=_variable("KAFKA_SASL_KERBEROS_SERVICE_NAME"),
        sasl_oauthbearer_token_endpoint_url=_variable("KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL"),
        sasl_oauthbearer_client_id=_variable("KAFKA_SASL_OAUTHBEARER_CLIENT_ID"),
        sasl_oauthbearer_client_secret=_variable("KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET"),
        sasl_oauthbearer_scope=_variable("KAFKA_SASL_OAUTHBEARER_SCOPE"),
        sasl_oauthbearer_token_provider=_variable("KAFKA_SASL_OAUTHBEARER_TOKEN_PROVIDER"),
        sasl_login_callback_handler_class=_variable("KAFKA_SASL_LOGIN_CALLBACK_HANDLER_CLASS"),
        ssl_ca_location=_variable("KAFKA_SSL_CA_LOCATION"),
        ssl_identity_location=_variable("KAFKA_SSL_IDENTITY_LOCATION"),
        ssl_key_password=_variable("KAFKA_SSL_KEY_PASSWORD"),
    )


def _variable(name: str) -> dg.EnvVar | None:
    """Return a reference to a variable that is set; None for another one, which no run could look up."""
    return dg.EnvVar(name) if os.environ.get(name) else None
