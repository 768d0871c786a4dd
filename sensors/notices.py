"""The notifier for streams that need a person: ``EXACTLY_ONCE_WEBHOOK`` is the address of a webhook."""

import os

import dagster as dg

from dagster_exactly_once.notify import Notifier, WebhookNotifier


def notifier() -> Notifier | None:
    """Return the webhook; None without the variable: then the sensors tell nobody.

    ``EXACTLY_ONCE_WEBHOOK_FORMAT`` is ``json`` (default) or ``slack``.
    """
    if not os.environ.get("EXACTLY_ONCE_WEBHOOK"):
        return None
    return WebhookNotifier(
        url=dg.EnvVar("EXACTLY_ONCE_WEBHOOK"), format=os.environ.get("EXACTLY_ONCE_WEBHOOK_FORMAT", "json")
    )
