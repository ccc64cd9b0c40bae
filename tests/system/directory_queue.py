"""Perl's Directory::Queue in its own process, which gets its commands for a folder line by line, like `Original`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.formats.originals import ByLine

MISSING = (
    "skipped: Perl's Directory::Queue 2 is not installed (Fedora and EPEL: perl-Directory-Queue; Debian has no such"
    " package; from CPAN: cpan Directory::Queue)"
)

PROGRAM = r"""
use strict;
use warnings;
use Directory::Queue;
use JSON::PP;
use MIME::Base64;

$| = 1;
my $json = JSON::PP->new->ascii->allow_nonref;
my ($path, $schema, $options) = @{ $json->decode($ARGV[0]) };
my $queue = opened($path);

sub opened {
    my ($where) = @_;
    return Directory::Queue->new(path => $where, %{ $options }) unless $schema;
    return Directory::Queue->new(path => $where, type => "Normal", schema => $schema, %{ $options });
}

sub value_of {
    my ($text) = @_;
    return $text unless ref($text) eq "HASH";
    return decode_base64($text->{bytes}) if exists($text->{bytes});
    my $table = $text->{table};
    return { map { $_ => value_of($table->{$_}) } keys(%{ $table }) };
}

sub bytes { return { bytes => encode_base64($_[0], "") } }

sub names {
    my ($name, @found) = ($queue->first());
    while ($name) { push(@found, $name); $name = $queue->next(); }
    return \@found;
}

sub get {
    my ($name) = @_;
    return bytes($queue->get($name)) unless $schema;
    my $found = $queue->get($name);
    my %pieces;
    foreach my $piece (keys(%{ $found })) {
        my $value = $found->{$piece};
        $pieces{$piece} = $schema->{$piece} =~ /^binary/ ? bytes($value) : ref($value) ? { table => $value } : $value;
    }
    return { table => \%pieces };
}

sub take {
    my ($most) = @_;
    my @taken;
    foreach my $name (@{ names() }) {
        next unless @taken < $most and $queue->lock($name);
        push(@taken, [$name, get($name)]);
        $queue->remove($name);
    }
    return \@taken;
}

sub purge {
    my %ages;
    @ages{("maxtemp", "maxlock")[0 .. $#_]} = @_ if @_;
    my @warnings;
    local $SIG{__WARN__} = sub { push(@warnings, $_[0]) };
    $queue->purge(%ages);
    return \@warnings;
}

my %verbs = (
    names => \&names, get => \&get, take => \&take, purge => \&purge,
    version => sub { return "$Directory::Queue::VERSION" },
    map { my $verb = $_; $verb => sub { return $queue->$verb(@_) } }
        qw(add lock unlock remove touch count get_path)
);

while (my $line = <STDIN>) {
    my ($verb, @arguments) = @{ $json->decode($line) };
    my $result = eval { $verbs{$verb}->(map { value_of($_) } @arguments) };
    my $answer = $@ ? { error => "$@" } : { result => $result };
    print($json->encode($answer), "\n");
}
"""


def perl() -> str:
    """Path of a Perl with Directory::Queue. Without one, the test is skipped."""
    found = shutil.which("perl")
    if found is None or subprocess.run([found, "-e", "use Directory::Queue 2"], capture_output=True).returncode:
        pytest.skip(MISSING)
    return found


class DirectoryQueue(ByLine):
    """A queue of Directory::Queue. It has the methods of `Simple`, or with a schema those of `Normal`.

    Args:
        path: path of the folder.
        schema: schema of the elements, for `Normal`.
        options: options of the queue: umask, maxelts, granularity and rndhex.
    """

    def __init__(self, path: Path, schema: dict[str, str] | None = None, **options: Any) -> None:
        super().__init__([perl(), "-e", PROGRAM, json.dumps([str(path), schema, options])])
