"""Lists of objects that a store refuses or breaks off, or that have names outside the requested prefix."""

from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from botocore import exceptions as botocore_errors
from google.api_core import exceptions as google_errors

from jqueue import GCSStorage, S3Storage, StorageError
from jqueue.domain.errors import StorageFatalError


class S3:
    """A session, and its client, with these answers to lists; the last one is repeated."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))

    def client(self, *args, **options):
        return nullcontext(self)

    async def list_objects_v2(self, **arguments):
        self.asked.append(arguments)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Google:
    """A client of Google, whose lists end in an error."""

    def __init__(self, error):
        self.error = error

    def list_blobs(self, *args, **options):
        raise self.error


async def listed(storage):
    async with storage:
        return [each.suffix for each in await storage.list_beside(".staged.")]


def contents(*keys):
    return [{"Key": key, "LastModified": datetime(2030, 1, 1, tzinfo=UTC), "Size": 1} for key in keys]


def from_s3(status, code):
    return botocore_errors.ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "ListObjectsV2"
    )


@pytest.mark.parametrize(
    ("answers", "hint"),
    [
        ([{"IsTruncated": True}], "was cut"),
        ([{"IsTruncated": True, "NextContinuationToken": "a"}], "again and again"),
        ([{"IsTruncated": True, "NextContinuationToken": "a"}, from_s3(500, "InternalError")], "the store failed"),
    ],
)
async def test_a_list_that_cannot_be_read_to_its_end_is_a_failure(answers, hint):
    with pytest.raises(StorageError, match=hint):
        await listed(S3Storage("the-bucket", "key", S3(*answers)))


async def test_names_outside_the_prefix_and_repeated_names_are_left_out():
    session = S3(
        {
            "IsTruncated": True,
            "NextContinuationToken": "a",
            "Contents": contents("key.staged.1", "precious", "key.json"),
        },
        {"IsTruncated": False, "Contents": contents("key.staged.1", "key", "key.staged.0")},
    )
    assert [".staged.0", ".staged.1"] == await listed(S3Storage("the-bucket", "key", session))
    assert [None, "a"] == [asked.get("ContinuationToken") for asked in session.asked]
    assert ["key.staged."] * 2 == [asked["Prefix"] for asked in session.asked]


@pytest.mark.parametrize(
    ("storage", "needed"),
    [
        (S3Storage("the-bucket", "key", S3(from_s3(403, "AccessDenied"))), "the credentials need s3:ListBucket"),
        (
            GCSStorage("the-bucket", "key", Google(google_errors.Forbidden("no"))),
            "the credentials need storage.objects.list",
        ),
    ],
    ids=["s3", "gcs"],
)
async def test_a_refusal_names_the_permission_to_list(storage, needed):
    with pytest.raises(StorageFatalError, match=f"to list, {needed}"):
        await listed(storage)
