"""Options of the data source are converted, or refused by a one-line error that names the valid values."""

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.spark.enqueue.writing import ANSWERS, OPTIONS, SAME
from jqueue.spark.option_parsing import BOOLEAN, INTEGER, NAMES, ONE_OF, SECONDS, TEXT, URL, parse_options, url_of
from jqueue.spark.snapshot.reader import ANSWERS as READING_ANSWERS
from jqueue.spark.snapshot.reader import KNOWN as READING

KNOWN = {
    "entrypoint": TEXT,
    "numPartitions": INTEGER(1, 10),
    "pollInterval": SECONDS,
    "quick": BOOLEAN,
    "status": NAMES,
    "onConflict": ONE_OF("return", "raise"),
    "stagingPath": URL,
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("entrypoint", " a b ", " a b "),
        ("numPartitions", "10", 10),
        ("pollInterval", "0.5", 0.5),
        ("quick", "True", True),
        ("quick", "false", False),
        ("status", "queued, dead", ("queued", "dead")),
        ("onConflict", "RAISE", "raise"),
        ("stagingPath", "s3://b/k", "s3://b/k"),
    ],
)
def test_an_option_is_converted(name, text, value):
    assert {name: value} == parse_options({name: text}, KNOWN)


def test_names_of_options_are_matched_in_any_case():
    assert {"numPartitions": 3} == parse_options(CaseInsensitiveDict({"NUMpartitions": "3"}), KNOWN)
    assert {"numPartitions": 3} == parse_options({"NUMPARTITIONS": "3"}, KNOWN)


def test_options_of_spark_itself_are_ignored():
    assert {} == parse_options({"path": "queue.json", "checkpointLocation": "/c", "queryName": "q"}, KNOWN)


def test_an_unknown_option_is_refused_with_the_known_names():
    with pytest.raises(InvalidJobError) as caught:
        parse_options({"entripoint": "a"}, KNOWN)
    assert (
        "there is no option 'entripoint': did you mean entrypoint? The options are entrypoint, numPartitions, "
        "onConflict, pollInterval, quick, stagingPath, status" == str(caught.value)
    )
    with pytest.raises(InvalidJobError, match="'num_partitions': did you mean numPartitions"):
        parse_options({"num_partitions": "3"}, KNOWN)
    with pytest.raises(InvalidJobError, match="'zzz': the options are entrypoint"):
        parse_options({"zzz": "3"}, KNOWN)


def test_a_name_of_another_source_that_means_the_same_is_accepted_once():
    assert {"status": ("dead",)} == parse_options({"State": "dead"}, KNOWN, {"state": "status"})
    with pytest.raises(InvalidJobError, match="the option status is given twice, once by another name"):
        parse_options({"state": "dead", "status": "dead"}, KNOWN, {"state": "status"})


def test_an_option_of_another_source_is_answered_with_advice():
    with pytest.raises(InvalidJobError) as caught:
        parse_options({"batchSize": "1000"}, KNOWN, answers={"batchsize": "leave it out"})
    assert "there is no option 'batchSize': leave it out" == str(caught.value)


@pytest.mark.parametrize(("known", "same", "answers"), [(OPTIONS, SAME, ANSWERS), (READING, {}, READING_ANSWERS)])
def test_names_of_other_sources_are_not_ours(known, same, answers):
    ours = {name.lower() for name in known}
    assert not ours & {*same, *answers}
    assert {*same.values()} <= {*known}
    assert all(name == name.lower() for name in (*same, *answers))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("entrypoint", " ", "option entrypoint takes a text that is not empty, got ' '"),
        ("numPartitions", "0", "option numPartitions takes a whole number from 1 to 10, got '0'"),
        ("numPartitions", "many", "option numPartitions takes a whole number from 1 to 10, got 'many'"),
        ("pollInterval", "-1", "option pollInterval takes a number of seconds, 0 or more, got '-1'"),
        ("pollInterval", "nan", "option pollInterval takes a number of seconds, 0 or more, got 'nan'"),
        ("quick", "yes", "option quick takes true or false, got 'yes'"),
        ("status", "a,,b", "option status takes names with commas between them, got 'a,,b'"),
        ("onConflict", "replace", "option onConflict takes return or raise, got 'replace'"),
        ("stagingPath", "", "option stagingPath takes a URL"),
    ],
)
def test_a_wrong_value_is_refused_with_the_valid_ones(name, text, words):
    with pytest.raises(InvalidJobError) as caught:
        parse_options({name: text}, KNOWN)
    assert words == str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"path": "queue.json"}, "queue.json"),
        ({"url": "s3://b/k"}, "s3://b/k"),
        ({"URL": "s3://b/k", "Path": "s3://b/k"}, "s3://b/k"),
        ({"url": "/a/queue.json", "path": ""}, "/a/queue.json"),
        ({"path": "file:/a/queue.json"}, "file:///a/queue.json"),
        ({"path": "file:/a/q.json", "url": "file:///a/q.json"}, "file:///a/q.json"),
    ],
)
def test_the_url_comes_from_the_option_url_or_the_path(options, url):
    assert url == url_of(options)
    assert {} == parse_options(options, KNOWN)


def test_two_different_urls_are_refused_without_being_shown():
    with pytest.raises(InvalidURLError) as caught:
        url_of({"url": "s3://key:secret@b/k", "path": "s3://b/other"})
    assert "the option url names another queue than the path does: give one of the two" == str(caught.value)


def test_a_queue_without_a_url_is_refused():
    assert "queue.json" == url_of(CaseInsensitiveDict({"path": "queue.json"}))
    for options in ({}, {"path": " "}):
        with pytest.raises(InvalidURLError, match="the URL of the queue is missing"):
            url_of(options)
