"""Faults of the disk under a queue file, and the names in its folder."""

import os


def names(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def instead_of_fsync(monkeypatch, action, call=1):
    """Run `action` in place of the flush with number `call`: the first flushes the file, the second its folder."""
    calls, fsync = [], os.fsync

    def faulty(descriptor):
        calls.append(descriptor)
        return action(descriptor) if len(calls) == call else fsync(descriptor)

    monkeypatch.setattr(os, "fsync", faulty)


def failing(number):
    def fail(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    return fail
