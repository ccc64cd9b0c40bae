"""The target `hand-edit`: the real queue opens a blob that a person has edited, and works on it.

The input is read as choices: the blob, its edits, and the calls made then.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from jqueue.operations import Ack, Enqueue
from jqueue.testing.virtual_time import run
from tests.fuzz.choices import Choices
from tests.fuzz.edits import edit
from tests.fuzz.seeds import blobs
from tests.fuzz.session import Session

VERBS = (
    *("enqueue", "dequeue", "enqueue", "dequeue", "heartbeat", "ack", "nack", "ack", "nack", "requeue_stale"),
    *("redrive", "purge", "cancel", "apply", "wait", "edit", "edit", "restart", "view"),
)

LONG = timedelta(days=1).total_seconds()
"""Seconds after which every claim is stale."""

NACKS: tuple[dict[str, Any], ...] = ({}, {"delay": 60}, {"dead": True}, {"charge": False})


def hand_edit_target(data: bytes) -> None:
    """Open the chosen blob, make the chosen calls, and judge every step.

    Raises:
        Finding: a promise was broken. Any other exception is a finding too.
    """
    choices = Choices(data)
    content = choices.pick(blobs())
    for _ in range(1 + choices.below(3)):
        content = edit(content, choices)
    run(_program(Session(content), choices))


async def _program(session: Session, choices: Choices) -> None:
    await session.judge_view()
    await session.call("enqueue", "mail", b"first", job_id="first")
    for _ in range(3 + choices.below(8)):
        await _step(session, choices.pick(VERBS), choices)
    await session.judge_view()
    for _ in range(3):
        if not await session.call("dequeue", batch_size=100):
            break
    await session.judge_view()


async def _step(session: Session, verb: str, choices: Choices) -> None:
    call = session.call
    if verb == "wait":
        await asyncio.sleep(choices.pick((0.5, 61, 400, LONG)))
    elif verb == "edit":
        await session.another_queue_writes(edit(await session.content(), choices))
    elif verb == "restart":
        session.queue = session.another()
    elif verb == "view":
        await session.judge_view()
    elif verb == "enqueue":
        await call(verb, choices.pick(("mail", "resize")), choices.take(3), **_options(choices))
    elif verb == "dequeue":
        names = choices.pick((None, "mail", ["resize", "mail"]))
        await call(verb, names, batch_size=choices.pick((1, 2, 100)), wait=choices.pick((None, 0, 5)))
    elif verb == "requeue_stale":
        await call(verb, choices.pick((0, 300, LONG)))
    elif verb in ("redrive", "purge"):
        only: dict[str, Any] = choices.pick(({}, {"entrypoint": "mail"}))
        await call(verb, **only)
    elif verb == "cancel":
        await call(verb, choices.pick(("first", "job-1", "job-2", "job-3", "job-5", "by hand", "mail")))
    elif session.claimed:
        job: Any = choices.pick(session.claimed)
        reference = choices.pick((job, job.id, job.claim))
        if verb == "apply":
            await call(verb, Ack(reference), Enqueue("next", b"", job_id="next"))
        elif verb == "nack":
            await call(verb, reference, **choices.pick(NACKS))
        else:
            await call(verb, reference)


def _options(choices: Choices) -> dict[str, Any]:
    """Return the keyword arguments of an enqueue."""
    options: dict[str, Any] = choices.pick(({}, {"job_id": "job-1"}, {"job_id": "bad"}, {"job_id": "mail-1"}))
    options = options | choices.pick(({}, {"delay": 60}, {"max_attempts": 1}, {"priority": -7}))
    key = choices.pick((None, "mail:eve", "mail:bob"))
    if key is not None:
        options |= {"unique_key": key, "on_conflict": choices.pick(("return", "raise", "replace")), "unique_for": 60}
    return options
