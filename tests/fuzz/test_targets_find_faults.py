"""Check the targets: faults planted in the code are found with the seeds and a few neighbours."""

import importlib.util
import json
import logging
from random import Random

import pytest
from pydantic_core import from_json
from rich.console import Console

from jqueue.core.blob import codec, lines, segment_object, segment_reader
from jqueue.core.blob import content as blob_module
from jqueue.core.blob.content import Blob
from jqueue.domain.draft import Draft
from jqueue.domain.operations import Heartbeat, NewJob
from tests.fuzz import __main__ as command
from tests.fuzz import fuzzer
from tests.fuzz.decode import decode_target
from tests.fuzz.oracles import Finding
from tests.fuzz.seeds import CORPUS, blobs, corpus, seeds
from tests.fuzz.targets import TARGETS, found

real_encode_job, real_encode_header, real_parse_blob = lines.encode_job, codec.encode_header, codec.parse_blob
real_read_line, real_from_json, real_adopt, real_encoding = lines.read_line, from_json, Blob.adopt, Blob.encoding

INPUTS = {name: seeds(name) + [Random(number).randbytes(200) for number in range(200)] for name in TARGETS}
"""Inputs of each target, made before any fault is planted."""


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def plant(monkeypatch, name, function):
    """Replace a function of the codec, also where the blob imports it."""
    monkeypatch.setattr(codec, name, function)
    if hasattr(blob_module, name):
        monkeypatch.setattr(blob_module, name, function)


def each(encode):
    """Return a function that encodes each of several jobs by `encode`."""
    return lambda jobs: [encode(job) for job in jobs]


def without_headers(job):
    return real_encode_job(job.evolve(headers={}))


def without_unknown_fields(job):
    known = {name: getattr(job, name) for name in type(job).model_fields}
    return real_encode_job(type(job).model_construct(**known))


def with_a_line_end_inside(job):
    return real_encode_job(job).replace(b'": {', b'":\n{', 1)


def without_holds(state):
    return real_encode_header(state.model_copy(update={"holds": {}}))


def with_a_smaller_attempt(job):
    return real_encode_job(job.evolve(attempt=max(0, job.attempt - 1)))


def that_trusts_its_fields(line):
    read = real_read_line(line)
    if hasattr(read, "reason"):
        json.loads(b"{" + line + b"}")["bad"]["payload"].upper()
    return read


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("encode_jobs", each(without_headers)),
        ("encode_jobs", each(without_unknown_fields)),
        ("encode_jobs", each(with_a_line_end_inside)),
        ("encode_jobs", each(with_a_smaller_attempt)),
        ("encode_header", without_holds),
        ("read_line", that_trusts_its_fields),
    ],
)
def test_a_codec_that_loses_something_is_found(monkeypatch, name, fault):
    plant(monkeypatch, name, fault)
    assert_found("decode")


def test_a_parser_that_lets_a_recursion_error_through_is_found(monkeypatch):
    def loads(*arguments, **options):
        try:
            return real_from_json(*arguments, **options)
        except ValueError:
            raise RecursionError("too deep") from None

    monkeypatch.setattr(lines, "from_json", loads)
    with pytest.raises(RecursionError):
        decode_target((CORPUS / "decode" / "types-mended.json").read_bytes())


def test_an_index_that_is_believed_is_found(monkeypatch):
    monkeypatch.setattr(segment_object, "_is_sound", lambda index, segment: True)
    assert {IndexError, TypeError} <= {type(found("segments", data)) for data in corpus("segments")}


def test_a_chunk_that_is_believed_is_found(monkeypatch):
    decode_chunk = segment_object.decode_chunk

    def trusting(data, number, segment, index, *rest):
        rows = decode_chunk(data, number, segment, index, *rest)
        for line in index.whole(data).split(b"\n")[:-1]:
            json.loads(b"{" + line + b"}")["priority"]
        return rows

    monkeypatch.setattr(segment_reader, "decode_chunk", trusting)
    assert_found("segments")


def test_a_second_reading_that_keeps_removed_jobs_is_found(monkeypatch):
    def adopt(self, parsed, size):
        kept = dict(self.draft.jobs)
        real_adopt(self, parsed, size)
        self.draft.load(job for name, job in kept.items() if name not in self.draft.jobs)

    monkeypatch.setattr(Blob, "adopt", adopt)
    assert_found("decode")


@pytest.mark.parametrize("inputs", [INPUTS["decode"][:1], corpus("decode")], ids=["written", "corpus"])
def test_a_blob_without_an_end_that_is_read_is_found(monkeypatch, inputs):
    """A job with headers ends in two braces, as the blob does."""

    def closed_by_any_braces(data):
        content = data.rstrip()
        return real_parse_blob(content[:-2] + b"\n}}\n" if content.endswith(b"}}") else data)

    plant(monkeypatch, "parse_blob", closed_by_any_braces)
    assert any(isinstance(found("decode", data), Finding) for data in inputs)


@pytest.mark.parametrize("target", ["decode", "hand-edit"])
def test_lines_that_are_not_written_back_are_found(monkeypatch, target):
    def encoding(self, header):
        self.draft.set_aside = ()
        return real_encoding(self, header)

    monkeypatch.setattr(Blob, "encoding", encoding)
    assert_found(target)


@pytest.mark.parametrize("target", ["hand-edit", "operations"])
def test_an_attempt_that_shrinks_is_found(monkeypatch, target):
    plant(monkeypatch, "encode_jobs", each(with_a_smaller_attempt))
    assert_found(target)


def refuses_with_key_error(self, job_id):
    return self.jobs[job_id]


def beats_and_loses(self, draft, now):
    for claim in self.jobs:
        draft.jobs.pop(claim.job_id, None)
    draft.touch()
    return []


def adds_and_refuses(self, draft, now):
    draft.touch()
    draft.jobs.clear()
    return NewJob._job(self, draft, now)


@pytest.mark.parametrize(
    ("target", "owner", "name", "fault"),
    [
        ("decode", Draft, "get", refuses_with_key_error),
        ("hand-edit", Draft, "get", refuses_with_key_error),
        ("hand-edit", Heartbeat, "change", beats_and_loses),
        ("hand-edit", NewJob, "change", adds_and_refuses),
        ("operations", Draft, "get", refuses_with_key_error),
        ("operations", NewJob, "change", adds_and_refuses),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_operation_that_is_wrong_is_found(monkeypatch, target, owner, name, fault):
    monkeypatch.setattr(owner, name, fault)
    assert_found(target)


def test_the_command_without_the_fuzzer_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert command.UNUSABLE == command.main([])
    assert "pip install" in capsys.readouterr().out


def test_the_output_of_the_fuzzer_is_parsed():
    outcome = fuzzer.Outcome("decode")
    said = (
        '{"file": "decode-1", "kind": "Finding"}\n#7 NEW cov: 12 ft: 3\n#9 DONE cov: 34 ft: 5\n'
        "stat::number_of_executed_units: 99\nstat::average_exec_per_sec:     11\nstat::peak_rss_mb:  70\n"
        "==1== ERROR: libFuzzer: timeout after 5 seconds\nTest unit written to .fuzz/findings/decode-timeout-ab\n"
    )
    fuzzer.read_output(said, 70, outcome)
    assert (99, 11, 34, 70) == (outcome.runs, outcome.per_second, outcome.edges, outcome.megabytes)
    assert {"decode-1": "Finding", "decode-timeout-ab": "timeout after 5 seconds"} == outcome.findings
    assert [] == outcome.failures


def test_a_fuzzer_that_ends_without_an_input_is_no_success(capsys):
    outcome = fuzzer.Outcome("decode")
    fuzzer.read_output("ImportError: no such thing", 1, outcome)
    assert command.FOUND == command._report([outcome], Console())
    said = capsys.readouterr().out
    assert "ImportError: no such thing" in said
    assert "--replay" not in said
    assert "The fuzzer failed: decode." == said.splitlines()[-1]


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ({}, "Nothing was found in 94,256,000 runs."),
        ({"decode-1": "Finding"}, "1 finding: 1 in decode."),
        ({"decode-1": "Finding", "decode-2": "KeyError"}, "2 findings: 2 in decode."),
    ],
)
def test_the_report_fits_80_columns_and_ends_with_a_verdict(capsys, findings, verdict):
    outcomes = [
        fuzzer.Outcome(target, runs=47_128_000, per_second=12_345, edges=12_345, corpus=12_345, megabytes=1_024)
        for target in ("decode", "operations")
    ]
    outcomes[0].findings = findings
    command._report(outcomes, Console(width=80))
    said = capsys.readouterr().out
    assert verdict == said.splitlines()[-1]
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("argument", ["--seconds=0", "--seconds=-5", "--seconds=x", "--jobs=0"])
def test_an_argument_that_is_no_positive_number_is_refused(capsys, argument):
    with pytest.raises(SystemExit) as ended:
        command.main([argument])
    assert command.UNUSABLE == ended.value.code
    assert "is not a whole number from 1 on" in capsys.readouterr().err


def test_a_finding_can_be_replayed(monkeypatch, capsys, tmp_path):
    path = tmp_path / "finding"
    path.write_bytes(blobs()[0])
    plant(monkeypatch, "encode_jobs", each(without_headers))
    assert command.FOUND == command.main(["--replay", str(path), "--target", "decode"])
    assert "a finding" in capsys.readouterr().out


def test_a_fixed_input_can_be_replayed_without_a_finding(capsys):
    path = CORPUS / "decode" / "layout-mistaken.json"
    assert 0 == command.main(["--replay", str(path), "--target", "decode"])
    assert "nothing is found" in capsys.readouterr().out


def assert_found(target):
    """Fail unless one of the inputs shows the fault."""
    assert any(found(target, data) is not None for data in INPUTS[target])
