"""Files as a durable store needs them: no links followed, flushed to the disk, errors that say what to do.

Nothing here knows what the files are for. On a system without POSIX file locks the module can still be imported.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from jqueue.domain.errors import StorageError, StorageFatalError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# O_NONBLOCK makes the opening of a fifo return at once; on a regular file it means nothing. The flags are looked up
# by name because Windows, where this module is only imported, lacks them.
_ALWAYS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

PRIVATE = 0o600
"""The mode of a file that only its owner may read and write."""

_FULL_FLUSH = getattr(fcntl, "F_FULLFSYNC", None)  # macOS, whose fsync leaves the content in the cache of the disk

_KINDS = {
    stat.S_IFLNK: "a symbolic link, and links are not followed; give the path of the file itself",
    stat.S_IFDIR: "a folder; give the path of a file inside it",
    stat.S_IFIFO: "a named pipe; give the path of a regular file",
    stat.S_IFSOCK: "a socket; give the path of a regular file",
    stat.S_IFCHR: "a device; give the path of a regular file",
    stat.S_IFBLK: "a device; give the path of a regular file",
}

# Retrying helps against none of these.
_REFUSALS = {
    errno.EACCES: "permission refused; {user} must be allowed to read and write it, and to create files in {folder!r}",
    errno.EPERM: "permission refused; {user} must be allowed to read and write it, and to create files in {folder!r}",
    errno.EROFS: "its file system is mounted read-only; it must be mounted for writing",
    errno.ELOOP: f"it is {_KINDS[stat.S_IFLNK]}",
    errno.EMLINK: f"it is {_KINDS[stat.S_IFLNK]}",  # FreeBSD's word for ELOOP
    errno.EISDIR: f"it is {_KINDS[stat.S_IFDIR]}",
    errno.ENXIO: f"it is {_KINDS[stat.S_IFSOCK]}",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.ENAMETOOLONG: "its name is too long; 200 bytes always fit",
    errno.ENOTSUP: "its file system has no locks; keep it on a local disk",
    errno.EOPNOTSUPP: "its file system has no locks; keep it on a local disk",
}

# Retrying may help against these, once somebody has done something.
_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space or have it raised",
    errno.EFBIG: "it would be larger than the system allows; raise the limit (ulimit -f) or remove jobs",
    errno.EMFILE: "this process has too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files",
}


def as_storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """What the system says, as a StorageError that says what was being done, where, and what to do."""
    where = error.filename if isinstance(error.filename, str) else path
    number = error.errno or 0
    if number in _REFUSALS:
        reason = _REFUSALS[number].format(user=_user(), folder=os.path.dirname(path))
        return StorageFatalError(f"Could not {doing}: {where!r}: {reason}", error)
    advice = f": {_ADVICE[number]}" if number in _ADVICE else ""
    return StorageError(f"Could not {doing}: {where!r}{advice}", error)


def open_file(path: str, flags: int, mode: int = PRIVATE) -> tuple[int, os.stat_result]:
    """Open a regular file, following no link and waiting for nobody.

    Args:
        path: of the file.
        flags: those of `os.open`.
        mode: that of the file, if this creates it.

    Returns:
        The descriptor, and what the system knew of the file as it was opened.

    Raises:
        StorageFatalError: there is something else than a regular file.
        OSError: the system refused.
    """
    descriptor = os.open(path, flags | _ALWAYS, mode)
    try:
        status = os.fstat(descriptor)
        check_kind(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def create_file(path: str) -> int:
    """Create a file, mode 0600, and open it for writing. Nothing may be there: so it needs no look at what it is."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ALWAYS, 0o600)


def file_status(path: str) -> os.stat_result | None:
    """What the system knows about the regular file at a path; None when nothing is there.

    Raises:
        StorageFatalError: there is something else than a regular file.
        OSError: the system refused.
    """
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    check_kind(path, status)
    return status


def regular_file(entry: os.DirEntry[str]) -> os.stat_result | None:
    """What the system knows about a file in a folder; None if it has gone, or is something else than a regular file."""
    try:
        return entry.stat(follow_symlinks=False) if entry.is_file(follow_symlinks=False) else None
    except FileNotFoundError:
        return None


def check_kind(path: str, status: os.stat_result) -> None:
    """Refuse, with a StorageFatalError, whatever is not a regular file."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file; give the path of one")
        raise StorageFatalError(f"{path!r} is {kind}")


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it, however little the system takes at a time."""
    written = os.write(descriptor, content)
    if written < len(content):
        rest = memoryview(content)[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def read_all(descriptor: int, size: int) -> bytes:
    """Read to the end of a file that had that size a moment ago: in one call, if it still has it."""
    content = os.read(descriptor, size + 1)  # one more, so that less than all of it is the end
    if len(content) == size:
        return content
    parts = [content]
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def flush(descriptor: int) -> None:
    """Have the disk, and not only the system, hold what was written."""
    if _FULL_FLUSH is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_FLUSH)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise  # a real failure, which fsync might not report a second time
        else:
            return
    os.fsync(descriptor)


def open_folder(path: str) -> int:
    """Open a folder, to flush it with."""
    return os.open(path, _FOLDER)


def flush_folder(descriptor: int) -> None:
    """Have the disk hold the names in a folder, where the file system can do that."""
    try:
        flush(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and say so like this
            raise


def create_folder(path: str) -> None:
    """Create a folder and those above it, each one durable in the one above before anything is put into it."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    create_folder(above)
    with suppress(FileExistsError):
        os.mkdir(path)
    descriptor = open_folder(above)
    try:
        flush_folder(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner_of(status: os.stat_result, descriptor: int) -> None:
    """Root that mends a user's queue leaves the user its owner, who could not open it any more otherwise."""
    if status.st_uid != 0 and os.geteuid() == 0:
        with suppress(OSError):  # in a container, root may not be allowed to; then it stays root's
            os.fchown(descriptor, status.st_uid, status.st_gid)


def readers_and_writers(status: os.stat_result) -> int:
    """The mode of a file, of which only the bits to read and write mean something here. The owner has both."""
    return (status.st_mode & 0o666) | PRIVATE


def share_alike(like: os.stat_result, descriptor: int, status: os.stat_result | None = None) -> None:
    """Give a file the group and mode of another one, and its owner, as far as this process may.

    Where the group cannot be given, its members get what everybody gets: another group must not get in.

    Args:
        like: what the system knows of the other file.
        descriptor: of the file.
        status: what the system knows of the file; looked up by default.
    """
    own = os.fstat(descriptor) if status is None else status
    mode = readers_and_writers(like)
    if own.st_uid != like.st_uid:
        give_to_owner_of(like, descriptor)
    if own.st_gid != like.st_gid and not _give_to_group(like.st_gid, descriptor):
        mode &= 0o606 | (mode & 0o006) << 3
    if stat.S_IMODE(own.st_mode) != mode:
        with suppress(PermissionError):  # a file of another user; that user's next write sees to it
            os.fchmod(descriptor, mode)


def _give_to_group(group: int, descriptor: int) -> bool:
    """Give a file to a group. Returns False if this process may not: it is not a member."""
    try:
        os.fchown(descriptor, -1, group)
    except PermissionError:
        return False
    return True


def _user() -> str:
    return f"this process (user id {os.geteuid()})" if hasattr(os, "geteuid") else "this process"
