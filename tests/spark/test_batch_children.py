"""What handlers do to their process costs their own jobs an attempt, and no others anything. Without Spark."""

import asyncio
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from jqueue.domain.models import Job
from jqueue.domain.operations import Cancel, Enqueue
from jqueue.spark.child import Errand
from jqueue.spark.children import WorkFailed, do_jobs
from jqueue.spark.listening import Patience
from jqueue.worker import Context, Discard, Retry, Snooze, Worker

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no child processes without fork")

SHORT = Patience(late=0.3, end=0.5, exit=0.5)


def jobs_of(*payloads, entrypoint="work", **fields):
    return [
        Job(id=f"job {number}", entrypoint=entrypoint, payload=payload, attempt=7, failures=1, **fields)
        for number, payload in enumerate(payloads)
    ]


def done_by(worker, jobs, patience=SHORT):
    return do_jobs(Errand(lambda: worker, lambda: pytest.fail("nobody asked for the queue")), jobs, patience)


class Diary:
    """What handlers note, in whichever process they run."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def note(self, text):
        with self.path.open("a") as file:
            file.write(f"{text}\n")

    def read(self):
        return self.path.read_text().split("\n")[:-1]


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "diary")


def make_worker(misdeed, concurrency=5, **options):
    """A worker whose handler does a misdeed when the payload is `bad`."""
    worker = Worker(concurrency=concurrency)

    @worker.handler("work", **options)
    async def work(payload: bytes) -> None:
        await asyncio.sleep(0)
        if payload == b"bad":
            misdeed()

    return worker


def crash():
    ctypes.string_at(0)


def close_everything():
    os.closerange(3, 4096)


def interrupt():
    raise KeyboardInterrupt


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


ENDS = {
    "exits": (lambda: os._exit(3), "ended with exit code 3"),
    "exits as if all was well": (lambda: os._exit(0), "ended with exit code 0"),
    "kills itself": (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL"),
    "is terminated": (terminate, "was ended by SIGTERM"),
    "interrupts itself": (lambda: os.kill(os.getpid(), signal.SIGINT), "was ended by SIGINT"),
    "raises KeyboardInterrupt": (interrupt, "ended with exit code 130"),
    "aborts": (os.abort, "was ended by SIGABRT: it crashed"),
    "crashes": (crash, "was ended by SIGSEGV: it crashed"),
    "closes all files": (close_everything, "ended"),
    "kills its group": (lambda: os.killpg(0, signal.SIGKILL), "was ended by SIGKILL"),
}


@pytest.mark.parametrize(("misdeed", "told"), ENDS.values(), ids=ENDS.keys())
def test_a_handler_that_ends_its_process_is_charged_and_no_other(misdeed, told):
    jobs = jobs_of(*[b"good"] * 7, b"bad", *[b"good"] * 12)
    outcomes = done_by(make_worker(misdeed), jobs)
    assert [job.claim for job in jobs] == [outcome.claim for outcome in outcomes]
    assert {7: "killed"} == {number: each.kind for number, each in enumerate(outcomes) if each.kind != "done"}
    assert outcomes[7].error is not None
    assert outcomes[7].error.startswith(f"the process of the handler {told}")


def test_each_of_many_such_handlers_is_found_and_the_rest_is_done():
    jobs = jobs_of(*[b"bad", b"good", b"good"] * 8)
    kinds = Counter(outcome.kind for outcome in done_by(make_worker(lambda: os._exit(1), concurrency=4), jobs))
    assert Counter(done=16, killed=8) == kinds


def test_jobs_that_were_not_begun_are_begun_once(diary):
    worker = Worker(concurrency=3)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(payload.decode())
        await asyncio.sleep(0.01)
        if payload == b"0":
            os._exit(1)

    payloads = [b"%d" % number for number in range(20)]
    done_by(worker, jobs_of(*payloads))
    times = Counter(diary.read())
    assert dict.fromkeys(map(str, range(3, 20)), 1) == {name: times[name] for name in map(str, range(3, 20))}
    assert {"0": 2, "1": 2, "2": 2} == {name: times[name] for name in "012"}, "begun, and then each alone"


def test_who_is_to_blame_is_found_in_a_process_that_nobody_else_has_touched(diary):
    worker = Worker(concurrency=3)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(f"{payload.decode()} {os.getpid()}")
        await asyncio.sleep(0.01)
        if payload == b"bad":
            os._exit(1)

    done_by(worker, jobs_of(b"good", b"bad", b"last", b"rest"))
    lines = [line.split() for line in diary.read()]
    assert Counter(good=2, bad=3, last=2, rest=1) == Counter(name for name, _ in lines)
    [*_, final] = [pid for name, pid in lines if name == "bad"]
    assert ["bad"] == [name for name, pid in lines if pid == final]
    assert 4 == len({pid for _, pid in lines}) - 1


def test_when_all_slots_are_taken_by_handlers_that_do_not_stop_the_rest_is_done_elsewhere():
    worker = Worker(concurrency=2, cancel_grace=0.05)

    @worker.handler("work", timeout=0.05)
    def work(payload: bytes) -> None:
        if payload == b"slow":
            time.sleep(60)

    outcomes = done_by(worker, jobs_of(b"slow", b"slow", *[b""] * 5))
    assert ["retried"] * 2 + ["done"] * 5 == [outcome.kind for outcome in outcomes]


def test_what_was_told_before_the_process_ended_is_not_done_again(diary):
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(payload.decode())
        if payload == b"bad":
            os._exit(1)

    done_by(worker, jobs_of(b"first", b"second", b"bad", b"last"))
    assert ["first", "second", "bad", "bad", "last"] == diary.read()


def test_a_handler_that_ends_its_process_only_in_company_charges_nobody(tmp_path):
    worker, mark = Worker(concurrency=5), tmp_path / "killed once"

    @worker.handler("work")
    async def work() -> None:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    assert {"done"} == {outcome.kind for outcome in done_by(worker, jobs_of(*[b""] * 10))}


def test_a_handler_in_a_thread_ends_its_process_too():
    worker = Worker(concurrency=3)

    @worker.handler("work")
    def work(payload: bytes) -> None:
        if payload == b"bad":
            os._exit(9)

    outcomes = done_by(worker, jobs_of(b"good", b"bad", b"good", b"good"))
    assert ["done", "killed", "done", "done"] == [outcome.kind for outcome in outcomes]


def test_exits_and_errors_that_the_worker_sees_are_its_business():
    worker = Worker()

    class Odd(Exception):
        def __init__(self, one, two):
            self.lock = threading.Lock()

        def __reduce__(self):
            raise TypeError("never")

    misdeeds = {
        b"exit": lambda: sys.exit(4),
        b"odd": lambda: (_ for _ in ()).throw(Odd(1, 2)),
        b"retry": lambda: (_ for _ in ()).throw(Retry(after=60, reason="later")),
        b"discard": lambda: (_ for _ in ()).throw(Discard("never")),
        b"snooze": lambda: (_ for _ in ()).throw(Snooze(30)),
    }

    @worker.handler("work", max_attempts=5)
    async def work(payload: bytes) -> None:
        misdeeds[payload]()

    outcomes = done_by(worker, jobs_of(*misdeeds))
    assert [
        ("retried", "SystemExit: 4"),
        ("retried", "Odd: (1, 2)"),
        ("retried", "Retry: later"),
        ("dead", "Discard: never"),
        ("snoozed", None),
    ] == [(outcome.kind, outcome.error) for outcome in outcomes]
    assert [60, 30] == [outcomes[2].delay, outcomes[4].delay]


def test_results_that_cannot_be_kept_cost_their_own_job_and_large_ones_arrive():
    worker = Worker()
    results = {
        b"none": lambda: None,
        b"lock": threading.Lock,
        b"huge": lambda: "x" * 10**6,
        b"large": lambda: "é" * 30_000,
    }

    @worker.handler("work")
    async def work(payload: bytes) -> object:
        return results[payload]()

    outcomes = done_by(worker, jobs_of(*results, b"large", keep_result=60.0))
    assert ["done", "dead", "dead", "done", "done"] == [outcome.kind for outcome in outcomes]
    assert ["é" * 30_000] * 2 == [outcome.result for outcome in outcomes[3:]]
    assert "the limit is 65536" in (outcomes[2].error or "")


def test_a_result_that_nobody_keeps_may_be_anything():
    worker = Worker()

    @worker.handler("work")
    async def work() -> object:
        return threading.Lock()

    assert ["done"] == [outcome.kind for outcome in done_by(worker, jobs_of(b""))]


def test_what_handlers_print_goes_nowhere_else(capfd):
    worker = Worker()

    @worker.handler("work")
    def work(payload: bytes) -> None:
        print("printed", payload.decode())
        os.write(1, b"\0\0\0\1written\n" * 2000)
        subprocess.run(["echo", "by another process"], check=True)

    assert ["done"] * 3 == [outcome.kind for outcome in done_by(worker, jobs_of(b"1", b"2", b"3"))]
    told = capfd.readouterr().out
    assert 3 == told.count("by another process")
    assert ["1", "2", "3"] == sorted(told.count(f"printed {number}") * str(number) for number in (1, 2, 3))


def test_what_was_printed_before_is_not_printed_twice(capfd):
    sys.stdout.write("once")
    done_by(make_worker(lambda: None), jobs_of(b"", b""))
    assert 1 == capfd.readouterr().out.count("once")


def test_what_comes_from_a_process_and_is_no_message_is_taken_for_its_end(monkeypatch):
    pipes, pipe = [], os.pipe

    def noted():
        pipes.append(pipe())
        return pipes[-1]

    def scribble():
        os.write(pipes[-1][1], b"\0\0\0\4junk")

    monkeypatch.setattr(os, "pipe", noted)
    outcomes = done_by(make_worker(scribble), jobs_of(b"good", b"bad", b"good"))
    assert ["done", "killed", "done"] == [outcome.kind for outcome in outcomes]
    assert "the process of the handlers wrote where only jqueue does" == outcomes[1].error


def test_a_handler_that_is_stopped_in_time_leaves_its_process_alone(diary):
    worker = Worker(concurrency=5)

    @worker.handler("work", timeout=0.05)
    async def work(payload: bytes) -> None:
        diary.note(os.getpid())
        if payload == b"slow":
            await asyncio.sleep(30)

    outcomes = done_by(worker, jobs_of(b"slow", *[b""] * 9))
    assert ("retried", "timed out after 0.05 s") == (outcomes[0].kind, outcomes[0].error)
    assert Counter(done=9, retried=1) == Counter(outcome.kind for outcome in outcomes)
    assert 1 == len(set(diary.read())), "all of them ran in one process"


def test_a_handler_in_a_thread_that_does_not_stop_is_left_behind():
    worker = Worker(concurrency=2, cancel_grace=0.05)

    @worker.handler("work", timeout=0.05)
    def work(payload: bytes) -> None:
        if payload == b"slow":
            time.sleep(30)

    began = time.monotonic()
    outcomes = done_by(worker, jobs_of(b"slow", b"", b"", b""))
    assert ["retried", "done", "done", "done"] == [outcome.kind for outcome in outcomes]
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("hang", [lambda: time.sleep(60), lambda: [0 for _ in iter(int, 1)]], ids=["asleep", "busy"])
def test_a_handler_that_blocks_the_event_loop_is_ended_and_charged_and_no_other(hang):
    worker = Worker(concurrency=3, cancel_grace=0.05)

    @worker.handler("work", timeout=0.1)
    async def work(payload: bytes) -> None:
        if payload == b"slow":
            hang()

    outcomes = done_by(worker, jobs_of(b"", b"", b"slow", b"", b""))
    assert ["done", "done", "overdue", "done", "done"] == [outcome.kind for outcome in outcomes]


def test_a_worker_that_does_not_end_is_ended_when_its_jobs_are_done():
    worker = Worker()

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        yield
        time.sleep(60)

    @worker.handler("work")
    async def work() -> None: ...

    began = time.monotonic()
    assert ["done"] * 3 == [outcome.kind for outcome in done_by(worker, jobs_of(b"", b"", b""))]
    assert time.monotonic() - began < 20


def test_what_handlers_leave_running_holds_up_nobody():
    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        threading.Thread(target=time.sleep, args=(60,)).start()
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)

    began = time.monotonic()
    assert ["done"] == [outcome.kind for outcome in done_by(worker, jobs_of(b""))]
    assert time.monotonic() - began < 20


def test_processes_that_handlers_leave_behind_end_with_theirs_and_hold_up_nobody(diary):
    def fork():
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        diary.note(subprocess.Popen(["sleep", "60"]).pid)
        os._exit(5)

    began = time.monotonic()
    outcomes = done_by(make_worker(fork), jobs_of(b"bad", b"good"))
    assert [("killed", "the process of the handler ended with exit code 5"), ("done", None)] == [
        (outcome.kind, outcome.error) for outcome in outcomes
    ]
    assert time.monotonic() - began < 20
    assert diary.read()
    assert not [pid for pid in diary.read() if _goes_on(int(pid))]


def _goes_on(pid):
    """Whether a process is there, and no zombie that whoever reaps such things has yet to see."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
            state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        except ProcessLookupError:
            return False
        if not state.strip() or state.startswith("Z"):
            return False
        time.sleep(0.01)
    return True


def test_a_handler_that_stops_the_worker_has_the_rest_handed_back():
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        if payload == b"stop":
            worker.stop()
            await asyncio.sleep(0.1)

    outcomes = done_by(worker, jobs_of(b"", b"stop", b"", b""))
    assert ["done", "done", "handed_back", "handed_back"] == [outcome.kind for outcome in outcomes]


def test_jobs_are_handed_out_in_their_order(diary):
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(payload.decode())

    done_by(worker, jobs_of(*[b"%d" % number for number in range(30)]))
    assert [str(number) for number in range(30)] == diary.read()


def test_as_many_run_at_a_time_as_the_worker_says(diary):
    worker, running = Worker(concurrency=4), []

    @worker.handler("work")
    async def work() -> None:
        running.append(1)
        await asyncio.sleep(0.001)
        diary.note(len(running))
        running.pop()

    done_by(worker, jobs_of(*[b""] * 12))
    assert "4" == max(diary.read())


def test_a_job_that_was_claimed_too_often_is_dead_without_being_run(diary):
    worker = Worker()

    @worker.handler("work", max_attempts=3)
    async def work() -> None:
        diary.note("run")

    [outcome] = done_by(worker, [job.evolve(failures=4) for job in jobs_of(b"")])
    assert "dead" == outcome.kind
    assert [] == diary.read()


def test_jobs_that_go_with_an_ack_are_known_and_nothing_else_is_taken():
    worker = Worker()

    @worker.handler("work")
    async def work(payload: bytes, ctx: Context) -> None:
        ctx.on_ack(Enqueue("next", payload, delay=5) if payload == b"next" else Cancel("another"))

    outcomes = done_by(worker, jobs_of(b"next", b"cancel"))
    assert ({"entrypoint": "next", "payload": "bmV4dA==", "delay": 5.0},) == outcomes[0].added
    assert ("dead", "InvalidJobError: in a batch on Spark, on_ack takes Enqueue(...) alone, got Cancel") == (
        outcomes[1].kind,
        outcomes[1].error,
    )


def test_middleware_resources_and_typed_payloads_work_as_in_any_worker():
    worker = Worker()

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        yield {"factor": 3}

    @worker.middleware
    async def twice(ctx, call_next):
        return 2 * await call_next()

    @worker.handler("work")
    async def work(numbers: list[int], ctx: Context) -> object:
        return sum(numbers) * ctx.resources["factor"]

    outcomes = done_by(worker, jobs_of(b"[1, 2]", b"no list", keep_result=60.0))
    assert ["done", "dead"] == [outcome.kind for outcome in outcomes]
    assert 18 == outcomes[0].result


def test_handlers_with_a_process_of_their_own_have_one_here_too():
    from tests.worker.process_handlers import worker

    jobs = jobs_of(b'{"left": 2, "right": 3}', entrypoint="add", keep_result=60.0)
    assert [("done", {"left": 5, "right": 7})] == [(each.kind, each.result) for each in done_by(worker, jobs)]


def test_what_is_garbage_of_the_parent_is_not_ended_by_the_child(diary):
    class Connection:
        def __init__(self):
            self.itself = self

        def __del__(self):
            diary.note(os.getpid())

    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        gc.collect()

    gc.disable()
    try:
        Connection()
        done_by(worker, jobs_of(b""))
        assert [] == diary.read()
    finally:
        gc.enable()
    gc.collect()
    assert [str(os.getpid())] == diary.read()


# What makes the work itself impossible


def failure_of(worker, jobs, load=None):
    with pytest.raises(WorkFailed) as caught:
        do_jobs(Errand(load or (lambda: worker), lambda: pytest.fail("nobody asked for the queue")), jobs, SHORT)
    return caught.value


def test_a_worker_that_cannot_be_made_is_one_line():
    def load():
        raise ImportError("no module named numpy here")

    failure = failure_of(None, jobs_of(b"", b""), load)
    assert "the worker cannot be made there: ImportError: no module named numpy here" == str(failure)
    assert [] == list(failure.outcomes)


def test_a_program_that_exits_when_it_is_imported_is_one_line():
    assert "the worker cannot be made there: SystemExit: 2" == str(failure_of(None, jobs_of(b""), lambda: sys.exit(2)))


def test_a_program_that_crashes_when_it_is_imported_charges_nobody():
    failure = failure_of(None, jobs_of(b"", b""), crash)
    assert "the process of the handler was ended by SIGSEGV: it crashed, before it had begun a job" == str(failure)


def test_resources_that_cannot_be_had_are_one_line_and_charge_nobody():
    worker = make_worker(lambda: None)

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        raise ConnectionError("the database is away")
        yield

    assert "the worker failed: ConnectionError: the database is away" == str(failure_of(worker, jobs_of(b"", b"")))


def test_what_was_done_before_the_work_became_impossible_is_known(tmp_path):
    worker, mark = Worker(concurrency=2), tmp_path / "used up"

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        if mark.exists():
            raise ConnectionError("too many connections")
        mark.touch()
        yield

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        if payload == b"bad":
            os._exit(1)

    failure = failure_of(worker, jobs_of(b"", b"", b"", b"", b"bad", b"", b""))
    assert 4 <= len(failure.outcomes) <= 5
    assert {"done"} == {outcome.kind for outcome in failure.outcomes}


def test_a_lifespan_that_fails_at_its_end_costs_nothing():
    worker = make_worker(lambda: None)

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        yield
        raise ConnectionError("it was gone already")

    assert ["done"] * 2 == [outcome.kind for outcome in done_by(worker, jobs_of(b"", b""))]


def test_no_process_and_no_pipe_is_left():
    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []
    done_by(make_worker(lambda: os._exit(1)), jobs_of(b"bad", b"good"))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert len(before) == (len(os.listdir("/proc/self/fd")) if before else 0)


def test_without_fork_handlers_run_in_the_task(monkeypatch, diary):
    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        diary.note(os.getpid())

    monkeypatch.delattr(os, "fork")
    assert ["done"] * 2 == [outcome.kind for outcome in done_by(worker, jobs_of(b"", b""))]
    assert [str(os.getpid())] * 2 == diary.read()


def test_a_child_ends_when_its_parent_is_killed(diary):
    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        diary.note(os.getpid())
        time.sleep(60)

    parent = os.fork()
    if parent == 0:
        done_by(worker, jobs_of(b""))
        os._exit(0)
    while not diary.read():
        time.sleep(0.01)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    [pid] = diary.read()
    assert not _goes_on(int(pid))
