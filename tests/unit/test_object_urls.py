"""URLs to GET an object: made without a request, for one object and one time, or refused with what to do."""

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from jqueue.adapters.storage.azure import AzureBlobStorage
from jqueue.adapters.storage.gcs import GCSStorage
from jqueue.adapters.storage.s3 import S3Storage
from jqueue.domain.errors import StorageFatalError
from tests.servers.gcs_signed_urls import SigningCredentials

NAME = "some queue.json"
KEY = "bm90IGEgcmVhbCBrZXk="
ACCOUNT = "https://account.blob.core.windows.net"


async def url_of(storage, lifetime=timedelta(minutes=5)):
    async with storage:
        url = urlsplit(await storage.object_url(".history/1", lifetime))
    assert url.path.endswith("/some%20queue.json.history/1")
    return {name: value for name, [value] in parse_qs(url.query).items()}


async def test_a_url_of_s3_has_the_signature_that_every_store_takes():
    storage = S3Storage("bucket", NAME, region_name="eu-west-1", access_key_id="key", secret_access_key="secret")
    query = await url_of(storage, 299.5)
    assert ("AWS4-HMAC-SHA256", "300") == (query["X-Amz-Algorithm"], query["X-Amz-Expires"])


async def test_a_url_of_cloud_storage_is_signed_by_the_service_account():
    query = await url_of(GCSStorage("bucket", NAME, Client("none", SigningCredentials())))
    assert ("GOOG4-RSA-SHA256", "300") == (query["X-Goog-Algorithm"], query["X-Goog-Expires"])
    assert query["X-Goog-Credential"].startswith(f"{SigningCredentials.signer_email}/")


async def test_a_url_of_azure_allows_to_read_one_blob():
    query = await url_of(AzureBlobStorage("container", NAME, account_url=ACCOUNT, credential=KEY))
    assert ("b", "r") == (query["sr"], query["sp"])
    assert "se" in query, "it ends"


@pytest.mark.parametrize(
    ("storage", "remedy"),
    [
        (
            lambda: GCSStorage("bucket", NAME, Client("none", AnonymousCredentials())),
            "use the key of a service account",
        ),
        (
            lambda: AzureBlobStorage("container", NAME, account_url=ACCOUNT, credential="sv=2024-11-04&sig=secret"),
            "use the key of the account",
        ),
    ],
)
async def test_credentials_that_cannot_sign_are_refused_with_a_remedy(storage, remedy):
    with pytest.raises(StorageFatalError, match=rf"some queue\.json\.history/1: .* cannot sign a URL: {remedy}"):
        await url_of(storage())


async def test_a_url_of_s3_without_credentials_is_refused(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageFatalError, match="no credentials were found"):
        await url_of(S3Storage("bucket", NAME, region_name="eu-west-1"))
