"""Time of a bare conditional put to a store, with one client and no other request in flight."""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Any

from aiobotocore.session import get_session

WARM_UP = 3
PUTS = 15


async def seconds_of_a_put(given: dict[str, Any], size: int, puts: int = PUTS) -> float:
    """Return the median of `puts` conditional puts of this size, one after the other, each on the etag of the last."""
    content = os.urandom(size)
    place = {"Bucket": given["bucket"], "Key": f"{given['key']}-bare"}
    taken: list[float] = []
    async with get_session().create_client("s3", endpoint_url=given["url"], region_name=given["region"]) as client:
        # Without this, botocore asks before it sends the body, and a put takes two round trips.
        client.meta.events.register("request-created.s3.PutObject", _do_not_ask)
        condition = {"IfNoneMatch": "*"}
        for _ in range(WARM_UP + puts):
            start = time.perf_counter()
            answer = await client.put_object(**place, Body=content, **condition)
            taken.append(time.perf_counter() - start)
            condition = {"IfMatch": answer["ETag"]}
        await client.delete_object(**place)
    return median(taken[WARM_UP:])


def _do_not_ask(request: Any, **_: Any) -> None:
    del request.headers["Expect"]
