"""Handlers of jobs with parents find the results, also of parents that were claimed before they had children."""

import json
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError, Limits
from jqueue.errors import ResultWantedError
from jqueue.operations import Ack, Enqueue
from jqueue.worker import Context, Worker

LARGE = "x" * 5000


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
async def test_a_handler_finds_the_results_of_its_parents_in_order(kind: Any, batch: Any):
    worker, found = Worker(), list[Any]()

    @worker.handler("part")
    async def part(ctx: Context) -> Any:
        if ctx.job.payload == b"last":
            await ctx.queue.enqueue("late", b"", after=[ctx.job])  # its worker cannot know of this child
        return {b"first": 1, b"last": LARGE, b"unkeepable": object()}.get(ctx.job.payload)

    @worker.handler("sum", batch=batch)
    async def add_up(ctx: Any) -> None:
        found.extend([list(each.parents.items()) for each in ctx] if batch else [list(ctx.parents.items())])

    @worker.handler("late")
    async def late(ctx: Context) -> None:
        found.append(list(ctx.parents.values()))

    async with kind(InMemoryStorage(), limits=Limits(object_bytes=1000)) as queue:
        names = ["first", "last", "none", "unkeepable", "dead"]
        parents = await queue.enqueue_many([Enqueue("part", name.encode(), job_id=name) for name in names[:-1]])
        gone = await queue.enqueue("nobody", b"", job_id="dead")
        await queue.enqueue("sum", b"", after=[*reversed(parents), gone], on_dead="run")
        [job] = await queue.dequeue("nobody")
        await queue.nack(job, dead=True)
        await worker.run(queue, drain=True)
        assert sorted(found, key=len) == [[LARGE], [("none", None), ("last", LARGE), ("first", 1)]]
        assert {job.keep_result for job in (await queue.read_state()).jobs} <= {None, 1.0}, "kept no longer"


async def test_a_withheld_result_is_asked_for_once_and_only_if_a_child_needs_it():
    async with DirectQueue(InMemoryStorage()) as queue:
        parent = await queue.enqueue("work", b"")
        [claimed] = await queue.dequeue()
        child = await queue.enqueue("child", b"", after=[parent])
        before = await queue.storage.read()
        with pytest.raises(ResultWantedError, match=parent.id):
            await queue.apply(Ack(claimed, withheld=True))
        assert before == await queue.storage.read()
        await queue.apply(Ack(claimed, {"rows": 1}))
        assert await queue.result(parent) == {"rows": 1}
        [other] = [await queue.enqueue("other", b"")]
        [claimed] = await queue.dequeue("other")
        await queue.apply(Ack(claimed, withheld=True))
        assert json.loads((await queue.storage.read())[0])["jobs"].keys() == {parent.id, child.id}
        assert other.id not in json.loads((await queue.storage.read())[0])["jobs"]


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
async def test_in_a_chain_the_result_of_one_is_the_first_argument_of_the_next(kind: Any):
    worker, found = Worker(), list[Any]()

    @worker.handler("load")
    async def load(name: str) -> str:
        return name * 3

    @worker.handler("measure", batch=3)
    async def measure(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @worker.handler("tell")
    def tell(length: int, unit: str, digits: int = 2) -> None:
        found.append((length, unit, digits))

    async with kind(InMemoryStorage()) as queue:
        chain = load.call("ada").then(measure).then(tell, unit="letters")
        first, second, third = await queue.enqueue_many(chain)
        assert ((), (first.id,), (second.id,)) == (first.after, second.after, third.after)
        await queue.enqueue_many(chain)
        await worker.run(queue, drain=True)
        assert [(9, "letters", 2)] * 2 == found
        for wrong in (lambda: chain.then(tell, length=3), lambda: chain.then(tell, size=3)):
            with pytest.raises(InvalidJobError, match="takes no other argument"):
                wrong()


async def test_a_job_of_a_batch_whose_parent_has_no_result_fails_alone():
    worker, found = Worker(), list[str]()

    @worker.handler("load")
    async def load(name: str) -> Any:
        return name if name == "ada" else object()

    @worker.handler("greet", batch=2, max_attempts=1)
    async def greet(names: list[str]) -> None:
        found.extend(names)

    async with BrokerQueue(InMemoryStorage()) as queue:
        for name in ("ada", "bob"):
            await queue.enqueue_many(load.call(name).then(greet))
        report = await worker.run(queue, drain=True)
        assert (3, 1, ["ada"]) == (report.succeeded, report.dead, found)
