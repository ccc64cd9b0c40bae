"""File functions for a durable store: they follow no links, flush to the disk, and raise errors that say what to do.

They do not depend on the purpose of the files. The module can be imported on a system without POSIX file locks, too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jqueue.domain.errors import StorageError, StorageFatalError

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None  # type: ignore[assignment]

# O_NONBLOCK lets the opening of a fifo return at once; on a regular file it has no effect. The flags are looked up by
# name because Windows, where this module is only imported, lacks them.
_ALWAYS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

PRIVATE = 0o600
"""The mode of a file that only its owner may read and write."""

_FULL_FLUSH = getattr(fcntl, "F_FULLFSYNC", None)  # on macOS, where fsync leaves the content in the cache of the disk

_KINDS = {
    stat.S_IFLNK: "a symbolic link, and links are not followed; give the path of the file itself",
    stat.S_IFDIR: "a folder; give the path of a file inside it",
    stat.S_IFIFO: "a named pipe; give the path of a regular file",
    stat.S_IFSOCK: "a socket; give the path of a regular file",
    stat.S_IFCHR: "a device; give the path of a regular file",
    stat.S_IFBLK: "a device; give the path of a regular file",
}

# Errors against which retrying does not help.
_REFUSALS = {
    errno.EACCES: "permission refused; {user} must be allowed to read and write it, and to create files in {folder!r}",
    errno.EPERM: "permission refused; {user} must be allowed to read and write it, and to create files in {folder!r}",
    errno.EROFS: "its file system is mounted read-only; it must be mounted for writing",
    errno.ELOOP: f"it is {_KINDS[stat.S_IFLNK]}",
    errno.EMLINK: f"it is {_KINDS[stat.S_IFLNK]}",  # FreeBSD's error for a link
    errno.EISDIR: f"it is {_KINDS[stat.S_IFDIR]}",
    errno.ENXIO: f"it is {_KINDS[stat.S_IFSOCK]}",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.EBUSY: "it is mounted by itself, and so cannot be replaced; mount its folder instead",
    errno.ENAMETOOLONG: "its name is too long; 200 bytes always fit",
    errno.ENOTSUP: "its file system has no locks; keep it on a local disk",
    errno.EOPNOTSUPP: "its file system has no locks; keep it on a local disk",
}

# Errors against which retrying helps once the user has removed the cause.
_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space or have it raised",
    errno.EFBIG: "it would be larger than the system allows; raise the limit (ulimit -f) or remove jobs",
    errno.EMFILE: "this process has too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files; close some programs",
}


def as_storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """Return a system error as a StorageError that names the failed action, the path, and what to do."""
    where = error.filename2 or error.filename  # the second one is the new name, if a file could not be renamed
    where = where if isinstance(where, str) else path
    number = error.errno or 0
    if number in _REFUSALS:
        user = f" (user id {os.geteuid()})" if hasattr(os, "geteuid") else ""
        reason = _REFUSALS[number].format(user=f"this process{user}", folder=os.path.dirname(path))
        return StorageFatalError(f"Could not {doing}: {where!r}: {reason}", error)
    advice = f": {_ADVICE[number]}" if number in _ADVICE else ""
    failure = StorageError(f"Could not {doing}: {where!r}{advice}", error)
    failure.needs_user = bool(advice)
    return failure


def open_file(path: str, flags: int, mode: int = PRIVATE) -> tuple[int, os.stat_result]:
    """Open a regular file without following a link and without waiting.

    Args:
        path: of the file.
        flags: those of `os.open`.
        mode: of the file, if this call creates it.

    Returns:
        The descriptor, and the status of the file as it was opened.

    Raises:
        StorageFatalError: the path is not a regular file.
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


@contextmanager
def storage_errors(doing: str, path: str, *but: type[OSError]) -> Iterator[None]:
    """Raise system errors as `as_storage_error` does, but for some kinds."""
    try:
        yield
    except OSError as error:
        if isinstance(error, but):
            raise
        raise as_storage_error(error, doing, path) from error


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close an open file or folder at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def create_file(path: str) -> int:
    """Create a file with mode 0600, and open it for writing. The path must be free, so its kind need not be checked."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ALWAYS, 0o600)


def file_status(path: str) -> os.stat_result | None:
    """Return the status of the regular file at a path; None if the path is free.

    Raises:
        StorageFatalError: the path is not a regular file.
        OSError: the system refused.
    """
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    check_kind(path, status)
    return status


def check_kind(path: str, status: os.stat_result) -> None:
    """Raise StorageFatalError for anything but a regular file."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file; give the path of one")
        raise StorageFatalError(f"{path!r} is {kind}")


def check_folders(base: str, inner: str) -> None:
    """Check each folder on a path from `base`, which must exist and be no link.

    Raises:
        StorageFatalError: one of them is a file, a link, ...
        OSError: one of them does not exist, or the system refused.
    """
    for name in filter(None, inner.split("/")):
        base = os.path.join(base, name)
        if not stat.S_ISDIR(os.stat(base, follow_symlinks=False).st_mode):
            raise StorageFatalError(f"{base!r} is not a folder, and links are not followed: move it away")


def third_of_descriptors(most: int) -> int:
    """Return the number of connections to serve: `most`, but at most a third of the descriptors of this process.

    A broker serves a socket and an address, and keeps a third for its own work.
    """
    if resource is None:
        return most
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(most, limit // 3) if limit > 0 else most


def mount_of(descriptor: int) -> str:
    """Return the id of the mount of an open file or folder; empty if the kernel does not tell: only Linux does."""
    with suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:
        return next((line for line in lines if line.startswith("mnt_id:")), "")
    return ""


def write_all(descriptor: int, content: bytes | bytearray | memoryview) -> None:
    """Write all of the content, even if the system takes only parts of it at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_all(descriptor: int, size: int) -> bytes:
    """Read a file to its end, in one call if it still has the given size."""
    content = os.read(descriptor, size + 1)  # one byte more: a shorter answer shows that the end was reached
    if len(content) == size:
        return content
    parts = [content]
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def read_range(descriptor: int, start: int, size: int) -> bytes:
    """Read `size` bytes of a file from `start`, or fewer at its end."""
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, start)):
        parts.append(part)
        start, size = start + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def flush(descriptor: int) -> None:
    """Flush written content to the disk, not only to the cache of the system."""
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
    """Open a folder to flush it."""
    return os.open(path, _FOLDER)


def flush_folder(descriptor: int) -> None:
    """Flush the names in a folder to the disk, if the file system can do that."""
    try:
        flush(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # errors of file systems that cannot flush a folder
            raise


def create_folder(path: str) -> None:
    """Create a folder and its missing parents. Each is flushed to its parent before anything is put into it."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    create_folder(above)
    with suppress(FileExistsError):
        os.mkdir(path)
    with closing(open_folder(above)) as descriptor:
        flush_folder(descriptor)


def _change_owner(file: int | str, user: int, group: int) -> None:
    """Change the owner of a descriptor's file, or of what has this path, even if that is a link."""
    os.chown(file, user, group, follow_symlinks=isinstance(file, int))


def readers_and_writers(status: os.stat_result) -> int:
    """Return the read and write bits of a file's mode. The owner always has both."""
    return (status.st_mode & 0o666) | PRIVATE


def share_alike(like: os.stat_result, file: int | str, status: os.stat_result | None = None) -> None:
    """Give a file the owner, group and mode of another one, as far as this process may.

    If the group cannot be set, group members get the same rights as all users, so that no other group gains access.

    Args:
        like: status of the other file.
        file: its descriptor, or the path of a socket, whose descriptor has rights of its own.
        status: of the file; looked up by default.
    """
    own = os.stat(file, follow_symlinks=isinstance(file, int)) if status is None else status
    mode = readers_and_writers(like)
    if own.st_uid != like.st_uid and like.st_uid != 0 and os.geteuid() == 0:
        # The owner could otherwise no longer open what root has written. In a container, root may lack this right.
        with suppress(OSError):
            _change_owner(file, like.st_uid, like.st_gid)
    if own.st_gid != like.st_gid:
        try:
            _change_owner(file, -1, like.st_gid)
        except PermissionError:  # this process is not a member of the group
            mode &= 0o606 | (mode & 0o006) << 3
    with suppress(PermissionError):  # a file of another user; that user's next write sets it
        set_mode(file, mode, own)


def set_mode(file: int | str, mode: int, status: os.stat_result | None = None) -> None:
    """Set the permissions of a file. Readers of a folder may also search it, and its setgid bit stays.

    Args:
        file: descriptor of the file or folder, or a path.
        mode: bits to read and write.
        status: of the file; looked up by default.
    """
    own = os.stat(file) if status is None else status
    if stat.S_ISDIR(own.st_mode):
        mode |= (mode & 0o444) >> 2 | own.st_mode & 0o7000
    if stat.S_IMODE(own.st_mode) != mode:
        os.chmod(file, mode)
