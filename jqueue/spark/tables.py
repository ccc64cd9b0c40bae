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

OF_OPTION = "option."
"""Prefix with which Spark passes each option once more when it creates a table, along with `provider`."""

SECRETS = ("account_key", "sas_token")


def schema_of_table(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema. That of a table which Spark is about to create carries the URL of its queue.

    Raises:
        InvalidJobError: a new table has other options, which Spark would not pass on.
        InvalidURLError: the URL is missing, or has a secret in it.
    """
    names = [name.lower() for name in options]
    if "provider" not in names:
        return schema
    for name in names:
        if name.startswith(OF_OPTION) and name not in ("option.path", "option.url"):
            raise InvalidJobError(
                f"a table of a queue takes the option url or path alone, and not {shown(name[len(OF_OPTION) :])}: give "
                "it where the table is used, as in SELECT * FROM jobs WITH (status 'dead')"
            )
    url = url_of(options)
    for each in split(url):
        scheme, mark, _ = each.partition("://")
        parsed = parse_url(scheme, each, len(scheme) + len(mark)) if mark else None
        if parsed is not None and (parsed.secret is not None or any(name in parsed.options for name in SECRETS)):
            raise InvalidURLError(
                "the URL of a table must hold no secret, as it would be copied into files that are written from the "
                "table: give the key in the environment, or use CREATE TEMPORARY VIEW"
            )
    first, *rest = schema.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {**first.metadata, MARK: url}), *rest])


def url_in(schema: StructType) -> str | None:
    """Return the URL that the schema of a table carries; None if it carries none."""
    return next((str(field.metadata[MARK]) for field in schema.fields if MARK in (field.metadata or {})), None)


def options_of_table(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options, with the URL of the table if they have none."""
    url = url_in(schema)
    if url is None or "paths" in {name.lower() for name in options} or urls_of(options):
        return dict(options)
    return {**options, "url": url}
