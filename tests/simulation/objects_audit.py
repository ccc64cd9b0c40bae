"""Checks that each object of a large payload or result exists, whole, as long as a version of the queue names it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from tests.simulation.calls import Violation
from tests.simulation.chain import Version
from tests.simulation.network import HonestStore, Landing
from tests.simulation.segments_audit import named_in
from tests.simulation.stored_segments import NAMED

OBJECTS = 17
"""Number of the rule: what a commit names is there."""


def check_objects(landings: Sequence[Landing], versions: Sequence[Version], store: HonestStore) -> int:
    """Check every version. Return the number of names that were checked.

    Raises:
        Violation: an object was not there, not whole, or removed too early.
    """
    named = 0
    following = [*landings[1:], None][: len(landings)]
    for landing, version, after in zip(landings, versions, following, strict=True):
        replaced = float("inf") if after is None else after.at
        for suffix, size, digest in (*NAMED.findall(landing.content), *named_in(version)):
            named += 1
            name = suffix.decode()
            if name not in store.created or store.created[name][0] > landing.at:
                raise Violation(OBJECTS, f"the object {name} was named before it was there", version=version)
            content = store.created[name][1]
            if (len(content), sha256(content).hexdigest()) != (int(size), digest.decode()):
                raise Violation(OBJECTS, f"the object {name} is not whole", version=version)
            if store.removed.get(name, float("inf")) < replaced:
                raise Violation(OBJECTS, f"the object {name} was removed while a job named it", version=version)
    return named
