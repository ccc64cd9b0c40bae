"""Features that every format of an older queue supports."""

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

OF_ALL = Capabilities(**{name: name in _KEPT for name in Capabilities.__struct_fields__})
"""Features of every format. Each format adds its own to these."""
