"""jqueue and Perl's Directory::Queue work on one folder at the same time and are killed at random moments."""

import pytest

from tests.interop.formats.dirq_killed import KINDS, OURS, Killed, Worker
from tests.system.directory_queue import perl

pytestmark = pytest.mark.system

THEIRS = r"""
use strict;
use warnings;
use Directory::Queue;
use Fcntl;

my ($url, $folder, $kind, $journal, $seed) = @ARGV;
srand($seed % 4294967296);
sysopen(my $lines, $journal, O_WRONLY | O_CREAT | O_APPEND) or die("cannot open the journal: $!");
sub note { my ($what, $payload) = @_; syswrite($lines, "$what $payload\n") }

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [5.0, 60.0])
def test_no_element_is_lost_or_finished_twice_when_programs_are_killed(kind, seconds, ours, tmp_path):
    theirs = Worker([perl(), "-e", THEIRS])
    mine = Worker(ours.command(OURS), ours.environment)
    killed = Killed(kind, tmp_path, [theirs, theirs, mine, mine])
    killed.work(seconds)
    killed.audit()
