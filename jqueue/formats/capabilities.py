"""What no format of an older queue has a place for."""

from dataclasses import fields

from jqueue.ports.queue import Capabilities

_KEPT = {
    "headers",
    "dead_letters",
    "errors",
    "uncharged",
    "fencing",
    "heartbeat",
    "claim_timeout",
    "wait",
}

OF_ALL = Capabilities(**{field.name: field.name in _KEPT for field in fields(Capabilities)})
"""What each of them can do at least; what it can do besides is said beside it."""
