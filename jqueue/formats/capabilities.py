"""Features that every format of an older queue supports."""

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
"""Features of every format. Each format adds its own to these."""
