"""Queues and file stores are not dataclasses, and their settings cannot be changed

Why: claims, locks and commits under way depend on the settings. Make a new object instead

1.0.0: dataclasses, equal if their settings are
1.0.0: stale_timeout can be set: True
1.0.0: path can be set: True
2.0.0: no dataclasses, equal to themselves alone
2.0.0: stale_timeout can be set: False
2.0.0: path can be set: False
"""

import dataclasses
from datetime import timedelta
from pathlib import Path

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, LocalFileSystemStorage


def can_be_set(thing, name, value):
    try:
        setattr(thing, name, value)
        return True
    except AttributeError:
        return False


kinds = (BrokerQueue, DirectQueue, LocalFileSystemStorage)
are = "dataclasses" if all(dataclasses.is_dataclass(kind) for kind in kinds) else "no dataclasses"
equal = LocalFileSystemStorage("queue.json") == LocalFileSystemStorage("queue.json")
print(f"{are}, equal", "if their settings are" if equal else "to themselves alone")
print("stale_timeout can be set:", can_be_set(BrokerQueue(InMemoryStorage()), "stale_timeout", timedelta(1)))
print("path can be set:", can_be_set(LocalFileSystemStorage("queue.json"), "path", Path("other.json")))
