"""Schemas of dirq: jqueue accepts each schema that the real dirq accepts and a job fits into, and refuses others."""

import json
from itertools import product

import pytest

from jqueue import connect
from jqueue.formats.dirq.names import Schema
from tests.interop.formats.dirq_original import Dirq

pytestmark = pytest.mark.wide

KINDS = [f"{kind}{sign}" for kind in ("binary", "string", "table", "text", "") for sign in ("", "?", "*", "?*", "*?")]
KINDS += [f"binary{signs}" for signs in ("??", "**", "?*?", "!", " ?")]

ASK = """
import json, sys, tempfile
from dirq.queue import Queue
from dirq.Exceptions import QueueError
for schema in json.loads(sys.argv[1]):
    try:
        Queue(tempfile.mkdtemp(), schema=schema)
        print("yes")
    except QueueError:
        print("no")
"""


def schemas():
    """Schemas of one, two and three fields."""
    for body in KINDS:
        yield {"body": body}
        for header in KINDS:
            yield {"body": body, "header": header}
    for body, header, more in product(("binary", "string?*"), ("table", "table*?"), KINDS):
        yield {"body": body, "header": header, "more": more}
    yield from ({name: "binary"} for name in ("", "a b", "a-b", "ü"))


def fits(schema):
    """True if the schema requires no more than a payload and a table of headers."""
    others = [kind for name, kind in schema.items() if name not in ("body", "header")]
    return (
        not schema.get("body", "table").startswith("table")
        and schema.get("header", "table").startswith("table")
        and all("?" in kind for kind in others)
    )


def ours_takes(schema):
    try:
        Schema.parse(",".join(f"{name}:{kind}" for name, kind in schema.items()), "body", None)
    except ValueError:
        return False
    return True


def test_a_schema_is_accepted_if_dirq_accepts_it_and_a_job_fits_into_it(original, tmp_path):
    asked = list(schemas())
    answers = original("dirq").run(ASK, json.dumps(asked), folder=tmp_path).split()
    assert {"yes", "no"} == set(answers)
    expected = [answer == "yes" and fits(schema) for schema, answer in zip(asked, answers, strict=True)]
    assert [] == [schema for schema, taken in zip(asked, expected, strict=True) if taken != ours_takes(schema)]


async def test_an_element_without_its_optional_payload_is_a_job_without_payload(original, tmp_path):
    schema = {"body": "binary?", "header": "table*"}
    with Dirq(original("dirq"), tmp_path / "queue", schema) as dirq:
        dirq.add({"header": {"a": "b"}})
        async with connect(f"dirq://{tmp_path}/queue?fsync=false&schema=body:binary?,header:table*") as queue:
            assert [(b"", {"a": "b"})] == [(job.payload, dict(job.headers)) for job in (await queue.read_state()).jobs]
            [job] = await queue.dequeue()
            assert (b"", {"a": "b"}) == (job.payload, dict(job.headers))
            await queue.ack(job)
        assert 0 == dirq.count()
