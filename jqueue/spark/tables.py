"""SQL tables: `CREATE TABLE jobs USING jqueue OPTIONS (url 's3://bucket/queue.json')`.

Spark keeps the options of a table in its catalog, and passes none of them to a Python source when the table is used.
It does pass the table's schema. So the schema of a new table carries the URL of its queue, as metadata of its first
column. A reader finds it there, and so does a writer: Spark copies the metadata of the columns that it fills in. A
table that was created with columns of its own has no such schema, and cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from jqueue.connect.parsed_url import parse_url
from jqueue.domain.errors import InvalidJobError, InvalidURLError, shown
from jqueue.spark.fleet import split
from jqueue.spark.option_parsing import url_of, urls_of

MARK = "jqueue.url"
"""The metadata that holds the URL."""

PROVIDER = "provider"
OF_OPTION = "option."
"""Keys that Spark adds when it creates a table: the name of the source, and each option once more with a prefix."""

SECRETS = ("account_key", "sas_token")


def is_new_table(options: Mapping[str, str]) -> bool:
    """Return True if Spark asks for the columns of a table that it is about to create."""
    return any(name.lower() == PROVIDER for name in options)


def with_url(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a new table, which carries the URL of its queue.

    Raises:
        InvalidJobError: the table has other options, which Spark would not pass on.
        InvalidURLError: the URL is missing, or has a secret in it.
    """
    other = [name for name in options if name.lower().startswith(OF_OPTION)]
    other = [name for name in other if name.lower().removeprefix(OF_OPTION) not in ("path", "url")]
    if other:
        name = other[0][len(OF_OPTION) :]
        raise InvalidJobError(
            f"a table of a queue takes the option url or path alone, and not {shown(name)}: give it where the table is "
            "used, as in SELECT * FROM jobs WITH (status 'dead')"
        )
    url = url_of(options)
    if any(map(_has_secret, split(url))):
        raise InvalidURLError(
            "the URL of a table must hold no secret, as it would be copied into files that are written from the table: "
            "give the key in the environment, or use CREATE TEMPORARY VIEW"
        )
    first, *rest = schema.fields
    marked = StructField(first.name, first.dataType, first.nullable, {**first.metadata, MARK: url})
    return StructType([marked, *rest])


def url_in(schema: StructType) -> str | None:
    """Return the URL that the schema of a table carries; None if it carries none."""
    return next((str(field.metadata[MARK]) for field in schema.fields if MARK in (field.metadata or {})), None)


def options_of_table(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options, with the URL of the table if they have none."""
    url = url_in(schema)
    if url is None or "paths" in {name.lower() for name in options} or urls_of(options):
        return dict(options)
    return {**options, "url": url}


def _has_secret(url: str) -> bool:
    scheme, mark, _ = url.partition("://")
    if not mark:
        return False
    parsed = parse_url(scheme, url, len(scheme) + len(mark))
    return parsed.secret is not None or any(name in parsed.options for name in SECRETS)
