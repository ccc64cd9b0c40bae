"""jqueue and Perl's Directory::Queue on one folder. Debian does not have it: `make check-system` says so.

Where Perl's and Python's differ is proved here: Perl removes whatever has a dot in its name and is no young `.tmp` or
`.lck`, uses an empty last folder again, begins a table with an empty line, and counts elements only.
"""

import base64
import json
import os
import shutil
import subprocess

import pytest

from jqueue import connect
from tests.interop.formats.dirq_original import ByLine

MISSING = "skipped: Perl's Directory::Queue is not installed (Debian has none; Fedora/EPEL: perl-Directory-Queue)"

pytestmark = pytest.mark.system

of_both_kinds = pytest.mark.parametrize("kind", ["simple", "queue"])

PROGRAM = r"""
use strict;
use warnings;
use Directory::Queue;
use JSON::PP;
use MIME::Base64;

$| = 1;
my ($path, $kind) = @{ decode_json($ARGV[0]) };
my $queue = $kind eq "simple"
    ? Directory::Queue->new(path => $path, type => "Simple")
    : Directory::Queue->new(path => $path, type => "Normal", schema => { body => "binary", header => "table?" });

sub names {
    my @found;
    for (my $name = $queue->first(); $name; $name = $queue->next()) { push(@found, $name); }
    return \@found;
}

sub get {
    my ($name) = @_;
    if ($kind eq "simple") { return { body => encode_base64($queue->get($name), "") }; }
    my %data = $queue->get($name);
    my $found = { body => encode_base64($data{body}, "") };
    $found->{header} = $data{header} if $data{header};
    return $found;
}

my %verbs = (
    add => sub {
        my ($body, $header) = (decode_base64($_[0]), $_[1]);
        return $queue->add($body) if $kind eq "simple";
        return $queue->add({ body => $body, ($header ? (header => $header) : ()) });
    },
    names  => \&names,
    get    => \&get,
    lock   => sub { return $queue->lock($_[0]) ? JSON::PP::true : JSON::PP::false },
    unlock => sub { $queue->unlock($_[0]); return undef },
    remove => sub { $queue->remove($_[0]); return undef },
    count  => sub { return $queue->count() },
    purge  => sub { $queue->purge(maxtemp => $_[0], maxlock => $_[1]); return undef },
    take   => sub {
        my @taken;
        foreach my $name (@{ names() }) {
            next unless @taken < $_[0] and $queue->lock($name);
            push(@taken, [$name, get($name)]);
            $queue->remove($name);
        }
        return \@taken;
    },
);

my $json = JSON::PP->new->ascii->allow_nonref;
while (my $line = <STDIN>) {
    my ($verb, @arguments) = @{ $json->decode($line) };
    my $result = eval { $verbs{$verb}->(@arguments) };
    my $answer = $@ ? { error => "$@" } : { result => $result };
    print($json->encode($answer), "\n");
}
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "messages"


@pytest.fixture
def theirs(folder):
    perl = shutil.which("perl")
    if perl is None or subprocess.run([perl, "-MDirectory::Queue", "-e1"], capture_output=True).returncode:
        pytest.skip(MISSING)
    opened = []

    def make(kind):
        opened.append(ByLine([perl, "-e", PROGRAM, json.dumps([str(folder), kind])]))
        return opened[-1]

    yield make
    for queue in opened:
        queue.__exit__(None, None, None)


def ours(folder, kind):
    return connect(f"dirq://{folder}?kind={kind}&fsync=false")


def encoded(payload):
    return base64.b64encode(payload).decode()


@of_both_kinds
async def test_each_takes_what_the_other_added_in_its_order(kind, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        for number in range(20):
            if number % 2:
                await queue.enqueue("messages", b"\xff%d" % number)
            else:
                perl.add(encoded(b"\xff%d" % number))
        for number in range(0, 20, 4):
            taken = [content["body"] for _, content in perl.take(2)]
            assert [encoded(b"\xff%d" % number), encoded(b"\xff%d" % (number + 1))] == taken
            jobs = await queue.dequeue(batch_size=2)
            assert [b"\xff%d" % (number + 2), b"\xff%d" % (number + 3)] == [job.payload for job in jobs]
            assert await queue.ack_many(jobs) == []
        assert 0 == perl.count()


@of_both_kinds
async def test_neither_takes_what_the_other_has_locked(kind, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        names = [perl.add(encoded(b"%d" % number)) for number in range(3)]
        assert perl.lock(names[1])
        [first, third] = await queue.dequeue(batch_size=10)
        assert not any(perl.lock(name) for name in names)
        perl.unlock(names[1])
        [second] = await queue.dequeue()
        assert names == [first.id, second.id, third.id]
        assert await queue.ack_many([first, second, third]) == []
        assert [] == perl.names()


@of_both_kinds
async def test_perl_walks_counts_and_purges_among_jobs_of_every_state(kind, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        for number in range(8):
            await queue.enqueue("other" if number % 2 else "messages", b"%d" % number, headers={"a": "b" * 2000})
        dead, again, held, acked = await queue.dequeue(batch_size=4)
        await queue.nack(dead, dead=True, error="it failed")
        await queue.nack(again)
        await queue.ack(acked)
        for ages in ((300, 600), (0, 0), (1, 10)):
            perl.purge(*ages)
            assert 6 == len(perl.names()) == perl.count()
        assert await queue.redrive() == 1
        await queue.heartbeat(held)
        await queue.ack(held)
        assert 6 == len(perl.take(10))
        perl.purge(300, 600)
        assert () == (await queue.read_state()).jobs


@of_both_kinds
async def test_a_claim_that_perl_revoked_and_took_is_lost(kind, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        name = perl.add(encoded(b"payload"))
        [job] = await queue.dequeue()
        os.utime(folder / name, (1, 1))
        perl.purge(300, 600)
        assert perl.lock(name)
        for verb in (queue.ack, queue.nack, queue.heartbeat):
            with pytest.raises(Exception, match="claim"):
                await verb(job)
        perl.remove(name)
        assert 0 == perl.count()


@pytest.mark.parametrize(
    "header", [{"a": "1"}, {"tab\tkey": "line\nvalue", "back\\slash": "\\t", "": "empty", "ö": "☺"}]
)
async def test_tables_are_read_by_both(header, theirs, folder):
    perl = theirs("queue")
    async with ours(folder, "queue") as queue:
        perl.add(encoded(b"payload"), header)
        [job] = await queue.dequeue()
        assert header == job.headers
        await queue.ack(job)
        plain = {name: text for name, text in header.items() if name.isprintable() and name}
        await queue.enqueue("messages", b"payload", headers=plain)
        [(_, content)] = perl.take(1)
        assert plain == content["header"]
