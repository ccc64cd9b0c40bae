"""The HTTP interface against its own description: schemathesis makes requests of it, right and wrong ones."""

import asyncio
import importlib.util
import json
import sys
from datetime import timedelta

import pytest

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.server.access import Role
from jqueue.server.openapi import openapi
from tests.server.served import TOKENS, serving, token_file

COMMAND = "from schemathesis.cli import schemathesis; schemathesis()"


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
async def test_every_answer_is_as_described(path, tmp_path, caplog):
    description = json.loads(openapi())
    description["paths"]["/v1/claims"]["post"]["parameters"].clear()  # or a claim would wait for a minute
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(description))
    queue = BrokerQueue(LocalFileSystemStorage(path))
    async with queue, serving(queue, token_file(tmp_path)) as served:
        await queue.configure(history=timedelta(days=1))
        # Names must be printable, and some options exclude each other: the description cannot say so.
        options = ["--exclude-checks", "positive_data_acceptance", "--max-examples", "30", "--generation-deterministic"]
        signed = ["--header", f"Authorization: Bearer {TOKENS[Role.OPERATOR]}"]
        words = ["run", str(file), "--url", served.url, *options, *signed]
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", COMMAND, *words, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await program.communicate()
    assert 0 == program.returncode, output.decode()
    assert not any(token in caplog.text for token in TOKENS.values())
