"""The receipt and the log of a bulk enqueue, and the jobs that workers get from it."""

import asyncio
import json

from pyspark.sql.types import LongType, StringType

from jqueue import DirectQueue, connect
from tests.spark.enqueue.bulk import (
    KEYED,
    batch,
    jobs_of,
    schema,
    task,
    texts_of,
    write,
    writer,
)


def test_a_receipt_holds_the_result_of_a_write(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = {"receiptPath": "receipt.json", "txnAppId": "nightly", "txnVersion": "5"}
    receipts = []
    for _ in range(2):
        bulk = writer(file, KEYED, **named)
        reports = [bulk.stage([batch(KEYED, (b"a", "k"), (b"b", "k"), (b"c", None))], task())]
        monkeypatch.chdir("/")  # the commit may run in any working directory
        bulk.commit(reports)
        monkeypatch.chdir(tmp_path)
        receipts.append(json.loads((tmp_path / "receipt.json").read_text()))
    assert [
        {"added": 2, "taken": 1, "repeated": False, "version": None, "left_out": 0, "bad": 0},
        {"added": 0, "taken": 0, "repeated": True, "version": 5, "left_out": 0, "bad": 0},
    ] == receipts


def test_an_old_version_is_left_out_and_its_rows_are_logged(file, tmp_path, caplog):
    caplog.set_level("WARNING", "jqueue")
    write(file, b"a", txnAppId="nightly", txnVersion="5")
    write(file, b"a", txnAppId="nightly", txnVersion="5")
    assert [] == caplog.messages
    receipt = tmp_path / "receipt.json"
    write(file, b"b", b"c", txnAppId="nightly", txnVersion="3", receiptPath=str(receipt))
    assert [b"a"] == texts_of(file)
    expected = {"added": 0, "taken": 0, "repeated": True, "version": 5, "left_out": 2, "bad": 0}
    assert expected == json.loads(receipt.read_text())
    assert [
        "2 rows were not written: the write is version 3 of nightly, and the queue has version 5. Give each write a "
        "higher txnVersion, and each application a txnAppId of its own"
    ] == caplog.messages


def test_an_unwritable_receipt_does_not_fail_the_write(file, tmp_path, caplog):
    caplog.set_level("WARNING", "jqueue")
    write(file, b"a", receiptPath=str(tmp_path / "nowhere" / "receipt.json"))
    assert [b"a"] == texts_of(file)
    assert ["The receipt of a write could not be stored: FileNotFoundError"] == caplog.messages


def test_columns_without_a_payload_become_json(file):
    columns = schema(id=LongType(), name=StringType())
    bulk = writer(file, columns)
    bulk.commit([bulk.stage([batch(columns, (1, "ä"))], task())])
    assert ['{"id":1,"name":"ä"}'.encode()] == texts_of(file)


def test_a_worker_can_claim_the_written_jobs(file):
    write(file, b"a")

    async def work():
        queue = connect(file, DirectQueue)
        [job] = await queue.dequeue("resize")
        await queue.ack(job)
        return job.payload

    assert b"a" == asyncio.run(work())
    assert [] == jobs_of(file)
