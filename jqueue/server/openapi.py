"""The description of the HTTP interface in OpenAPI 3.1, made of the records of its bodies and answers.

`python -m jqueue.server.openapi` prints it: `docs/reference/openapi.json` is a copy.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec

from jqueue.server.access import ACCESS, HIDDEN, Role
from jqueue.server.api import ENDPOINTS, Endpoint
from jqueue.server.problems import MEDIA_TYPE, STATUSES

TITLE = "jqueue"
VERSION = "1"
"""The version of the interface, as in its paths."""

TEMPLATE = "#/components/schemas/{name}"

PROBLEMS = {
    400: "the head is wrong or too large, or the body is not JSON or not complete",
    401: "the token is missing or wrong",
    403: "the role of the token does not allow this, or the request comes from a page of another site",
    404: "there is no such thing",
    408: "the body did not arrive in time",
    409: "the job is not in the state that the call needs, or its claim is lost",
    413: "the body is too large",
    415: "the body needs the header `Content-Type: application/json`",
    421: "the name of the host is not allowed",
    422: "a value is wrong, and nothing was done",
    429: "the queue or the broker is full, and nothing was done: try again after `Retry-After` seconds",
    503: "the store or the broker does not answer, and nothing was done: try again after `Retry-After` seconds",
    504: "the outcome is unknown: it takes effect at most once. Repeat an enqueue with the same `id`",
}
"""The meaning of each status of a problem."""

SOME = (404, 409)
"""The statuses that only some endpoints have."""

PROBLEM: dict[str, Any] = {
    "title": "Problem",
    "type": "object",
    "description": "A problem document (RFC 9457). More members are the attributes of the error, such as `job_id`.",
    "properties": {
        "type": {"type": "string", "description": "`urn:jqueue:` and the title."},
        "title": {"type": "string", "description": "name of the error, such as `ClaimLostError`."},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    [query], components = msgspec.json.schema_components([endpoint.query], ref_template=TEMPLATE)
    fields = components[query["$ref"].rpartition("/")[2]]["properties"]
    schemas = {"id": {"type": "string", "minLength": 1}, "attempt": {"type": "integer", "minimum": 0}}
    return [
        *(
            {"name": name, "in": "path", "required": True, "schema": schemas[name]}
            for name in ("id", "attempt")
            if f"{{{name}}}" in endpoint.request
        ),
        *({"name": name, "in": "query", "schema": schema} for name, schema in fields.items()),
    ]


def _operation(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "done"}
    if endpoint.answers:
        several = [schema_of[each] for each in endpoint.answers]
        done["content"] = {"application/json": {"schema": several[0] if len(several) == 1 else {"anyOf": several}}}
    statuses = [status for status in PROBLEMS if status not in SOME or status in endpoint.errors]
    problem = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": _rights(endpoint),
        "parameters": _parameters(endpoint),
        "responses": {
            "200" if endpoint.answers else "204": done,
            **{str(status): {"description": PROBLEMS[status], "content": problem} for status in statuses},
        },
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": schema_of[endpoint.body]}}
        operation["requestBody"] = {"required": not _may_be_left_out(endpoint.body), "content": content}
    return operation


def _rights(endpoint: Endpoint) -> str:
    """Return the roles for an endpoint, and the fields of its answer that each of them does not see."""
    roles = [role for role in Role if role in ACCESS[endpoint.request]]
    fields = {name for answer in endpoint.answers for name in answer.__struct_fields__}
    hidden = {role: ", ".join(sorted(HIDDEN[role] & fields)) for role in roles if HIDDEN[role] & fields}
    sentences = [f"Hidden from a {role}: {names}." for role, names in hidden.items()]
    return " ".join([f"For the roles {', '.join(roles)}.", *sentences])


def _may_be_left_out(body: Any) -> bool:
    try:
        msgspec.convert({}, body)
    except msgspec.ValidationError:
        return False
    return True


@cache
def openapi() -> bytes:
    """Return the description as JSON."""
    types = list(
        dict.fromkeys(each for endpoint in ENDPOINTS for each in (*endpoint.answers, endpoint.body) if each is not None)
    )
    schemas, components = msgspec.json.schema_components(types, ref_template=TEMPLATE)
    for schema in components.values():
        if "description" in schema:
            schema["description"] = schema["description"].partition("\n\n")[0]
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        operation = _operation(endpoint, dict(zip(types, schemas, strict=True)))
        method, path = endpoint.request.split()
        paths.setdefault(path, {})[method.lower()] = operation
    names = ", ".join(f"{error.__name__} ({status})" for error, status in STATUSES.items())
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": VERSION,
            "description": f"A job queue. The problems that are errors of the queue: {names}.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return json.dumps(document, indent=2).encode() + b"\n"


if __name__ == "__main__":
    print(openapi().decode(), end="")
