"""``register()``: when Spark's own registration is as good, and when it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once.spark.data_source import KafkaExactlyOnce
from exactly_once.spark.registration import register_format


def session(*, found: bool = True, **changes: Any) -> Any:
    """A session of PySpark, as far as the registration looks at it; ``registered`` has what was registered."""
    facts = {"version": "4.2.0", "master": "local[2]", "includes": [], "classic": True} | changes
    manager = SimpleNamespace(dataSourceExists=lambda name: found and name == "kafka_exactly_once")
    registered: list[type] = []
    made = SimpleNamespace(
        version=facts["version"],
        sparkContext=SimpleNamespace(master=facts["master"], _python_includes=facts["includes"]),
        dataSource=SimpleNamespace(register=registered.append),
        registered=registered,
    )
    if facts["classic"]:
        state = SimpleNamespace(dataSourceManager=lambda: manager)
        made._jsparkSession = SimpleNamespace(sessionState=lambda: state)
    return made


def test_a_format_that_spark_finds_is_not_registered() -> None:
    """Mishap: Spark warns of a replaced data source at each start of a query, and nothing is wrong."""
    spark = session()
    register_format(spark)
    assert spark.registered == []


@pytest.mark.parametrize(
    "changes",
    [
        {"found": False},
        {"includes": ["exactly_once.zip"]},
        {"master": "spark://a:7077"},
        {"master": "yarn"},
        {"version": "4.3.0"},
        {"classic": False},
    ],
    ids=str,
)
def test_it_is_registered_where_that_may_change_something(changes: dict[str, Any]) -> None:
    """Outage: executors that got the package by addPyFile cannot import it, as the registration was left out."""
    spark = session(**changes)
    register_format(spark)
    assert spark.registered == [KafkaExactlyOnce]
