"""jqueue and Perl's Directory::Queue work on one folder at once, and their processes are killed again and again."""

import pytest

from tests.interop.formats.mixed import Worker, audit, killed, left_in, our_worker
from tests.system.directory_queue import perl

pytestmark = pytest.mark.system

THEIRS = r"""
use strict;
use warnings;
use Directory::Queue;

my ($folder, $kind, $seed) = @ARGV;
srand(unpack("%32C*", $seed));
sub note { my ($what, $payload) = @_; syswrite(STDOUT, "$what $payload\n") }

my $queue = $kind eq "simple"
    ? Directory::Queue->new(path => $folder, granularity => 1)
    : Directory::Queue->new(path => $folder, type => "Normal", maxelts => 5, schema => { body => "binary" });
my $added = 0;
while (1) {
    foreach (0 .. int(rand(3))) {
        my $payload = "$seed-" . $added++;
        note("try", $payload);
        my $name = eval { $queue->add($kind eq "simple" ? $payload : { body => $payload }) };
        # another Perl has purged the folder that this add chose: add fails with this error and adds nothing
        die($@) if not $name and $@ !~ /^cannot rename\(\S+\/temporary\/\S+ \S+\): No such file or directory$/;
        note("added", $payload) if $name;
    }
    my $taken = 0;
    for (my $name = $queue->first(); $name and $taken < 3; $name = $queue->next()) {
        next unless $queue->lock($name);
        $taken++;
        if (rand() < 0.2) { $queue->touch($name); $queue->unlock($name); next; }
        my $content = $queue->get($name);
        my $payload = $kind eq "simple" ? $content : $content->{body};
        note("finish", $payload);
        $queue->remove($name);
        note("done", $payload);
    }
    $queue->count();
    eval { $queue->purge() };
    # another process has added to a folder that was empty: the purge of Perl ends there
    die($@) if $@ and $@ !~ /^cannot rmdir\(.*\): Directory not empty$/;
}
"""


@pytest.mark.parametrize(("kind", "options"), [("simple", "granularity=1"), ("queue", "schema=body:binary")])
@pytest.mark.parametrize("lives", [3, 30])
async def test_no_element_is_lost_or_finished_twice_when_programs_are_killed(kind, options, lives, ours, tmp_path):
    folder = tmp_path / "queue"
    url = f"dirq://{folder}?kind={kind}&{options}"
    theirs, mine = Worker([perl(), "-e", THEIRS, str(folder), kind]), our_worker(ours, url)
    audit(killed([theirs, theirs, mine, mine], lives), await left_in(url))
