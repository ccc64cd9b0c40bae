"""The dashboard of a queue in a real S3 store, with a server and without one."""

import asyncio
import json
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
import pytest
from tests.cli.test_dashboard_command import call, refused, running

from jqueue import DirectQueue
from jqueue.connect import connect_storage
from jqueue.server.static_page import static_page
from tests.server.chromium import chromium
from tests.server.test_in_chromium import html, site
from tests.server.test_looking import fill

pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("chromium")]


def url_of(server, name, secret=None):
    keys = f"{quote(server.access_key)}:{quote(secret or server.secret_key)}"
    return f"s3://{keys}@{server.bucket}/{name}.json?endpoint_url={server.endpoint_url}&region_name={server.region}"


def on(url, work):
    async def run():
        storage: Any = connect_storage(url)
        async with DirectQueue(storage) as queue:
            return await work(queue)

    return asyncio.run(run())


def test_the_served_page_shows_and_changes_a_queue_in_a_bucket(seaweedfs):
    url = url_of(seaweedfs, "dashboard")
    ids = on(url, fill)
    with running(url) as (_, link):
        token = urlsplit(link).fragment.removeprefix("token=")
        cookie = call(link, "POST", "/api/session", {"token": token})[1]["Set-Cookie"].partition(";")[0]
        overview = json.loads(call(link, "GET", "/api/overview", Cookie=cookie)[2])
        assert 1 == overview["figures"]["dead"]
        assert seaweedfs.secret_key not in json.dumps(overview)
        job = json.loads(call(link, "GET", f"/api/job?id={ids['dead']}", Cookie=cookie)[2])
        body = {"id": ids["dead"], "seen": job["seen"]}
        assert 200 == call(link, "POST", "/api/actions/redrive", body, Cookie=cookie)[0]
        events = json.loads(call(link, "GET", f"/api/job/events?id={ids['dead']}", Cookie=cookie)[2])["events"]
        assert "redrive" == events[0]["verb"]


def test_wrong_keys_and_a_missing_object_are_one_clear_line(seaweedfs):
    assert "hunter2" not in refused(url_of(seaweedfs, "dashboard", secret="hunter2hunter2"))
    assert "there is no queue" in refused(url_of(seaweedfs, "missing"))


def test_the_page_without_a_server_reads_a_presigned_url(seaweedfs, tmp_path):
    url = url_of(seaweedfs, "alone")
    on(url, fill)
    client = boto3.client(
        "s3",
        endpoint_url=seaweedfs.endpoint_url,
        aws_access_key_id=seaweedfs.access_key,
        aws_secret_access_key=seaweedfs.secret_key,
        region_name=seaweedfs.region,
    )
    rule = {"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}
    client.put_bucket_cors(Bucket=seaweedfs.bucket, CORSConfiguration={"CORSRules": [rule]})
    signed = client.generate_presigned_url("get_object", {"Bucket": seaweedfs.bucket, "Key": "alone.json"}, 600)
    client.close()
    with chromium(tmp_path) as browser, site() as (home, pages):
        pages.answers["/page.html"] = html(static_page(signed))
        browser.open(f"{home}/page.html")
        browser.see("Ready\n1", ".cards")

        async def add(queue):
            await queue.enqueue("mail", b"")

        on(url, add)
        browser.see("Ready\n2", ".cards")
        assert "Signature" not in browser.text()
        assert [] == browser.log()
        pages.answers["/stale.html"] = html(static_page(signed.replace("Signature=", "Signature=0")))
        browser.open(f"{home}/stale.html")
        browser.see("presigned URL has perhaps expired", "#trouble")
