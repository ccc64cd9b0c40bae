"""Error answers of the small Cloud Storage server, in the wording of Google or of Google's testbench."""

from __future__ import annotations

import json

Answer = tuple[int, bytes, dict[str, str]]  # status, body and headers


def as_json(resource: object, status: int = 200) -> Answer:
    return status, json.dumps(resource, indent=1).encode(), {"Content-Type": "application/json; charset=UTF-8"}


class RefusalError(Exception):
    """A call to answer with an error. `testbench` is the wording of Google's testbench, where it differs."""

    def __init__(self, status: int, reason: str, message: str, domain: str = "global", testbench: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.testbench = status, message, testbench or message
        self.errors = [{"message": message, "domain": domain, "reason": reason}]

    def answer(self, kind: str, wording: str) -> Answer:
        if self.status == 304:
            return 304, b"", {}
        if wording == "testbench":
            inner = json.dumps({"error": {"errors": [{"domain": "global", "message": self.testbench}]}})
            return as_json({"code": self.status, "message": inner}, self.status)
        if kind == "download":
            return self.status, self.message.encode(), {"Content-Type": "text/html; charset=UTF-8"}
        return as_json({"error": {"code": self.status, "message": self.message, "errors": self.errors}}, self.status)


def not_found(message: str, testbench: str) -> RefusalError:
    return RefusalError(404, "notFound", message, testbench=testbench)


def invalid(message: str) -> RefusalError:
    return RefusalError(400, "invalid", message)
