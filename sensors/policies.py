"""The policies of the sensors; variables ``EXACTLY_ONCE_RESTART_...`` and ``EXACTLY_ONCE_WATCH_...`` change them."""

from dagster_exactly_once import RestartPolicy, WatchPolicy

POLICIES = {
    "restart_policy": RestartPolicy.from_environment("EXACTLY_ONCE_RESTART_"),
    "watch_policy": WatchPolicy.from_environment("EXACTLY_ONCE_WATCH_"),
}
