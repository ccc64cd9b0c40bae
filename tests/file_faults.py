"""What can be made to fail under a queue file, and what lies beside it."""

import os


def names(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def instead_of_fsync(monkeypatch, action, call=1):
    """Do something else at the so-many-th flush: the first is the file's, the second its folder's."""
    calls, fsync = [], os.fsync

    def faulty(descriptor):
        calls.append(descriptor)
        return action(descriptor) if len(calls) == call else fsync(descriptor)

    monkeypatch.setattr(os, "fsync", faulty)


def failing(number):
    def fail(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    return fail
