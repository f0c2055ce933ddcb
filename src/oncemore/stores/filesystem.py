"""The file system under a disk store, and explanations of the errors that it and SQLite raise."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import sqlite3
import stat

from diskcache.core import DBNAME

from ..errors import StoreDamaged, StoreError, StoreUnavailable, UsageError

_NETWORK = """
    9p afs beegfs ceph cifs coda davfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs pvfs2 smb2 smb3 smbfs
    fuse.blobfuse fuse.blobfuse2 fuse.ceph fuse.curlftpfs fuse.davfs fuse.gcsfuse fuse.glusterfs fuse.grpcfuse
    fuse.juicefs fuse.mount-s3 fuse.nfs fuse.osxfs fuse.rclone fuse.s3fs fuse.smbnetfs fuse.sshfs
"""
# On these, SQLite's locks and shared memory do not work between machines.
NETWORK_FILE_SYSTEMS = frozenset(_NETWORK.split())

READ_ONLY = "put the store on a writable disk"
_LOCKED = "database is locked"
_PERMISSION = "check its permissions: change the owner or mode, or use another directory"
_REMEDIES: dict[int | str | None, str] = {  # by errno, or by SQLite's message
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is exceeded: free some space or raise the quota",
    errno.EFBIG: "a file would exceed the size limit: raise it (ulimit -f)",
    errno.EROFS: f"the file system is read-only: {READ_ONLY}",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EMFILE: "this process has too many open files: close some or raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files: close some programs",
    errno.ENOTDIR: "part of the path is a file: use another directory",
    errno.EEXIST: "a file with that name exists: use another directory",
    errno.ENAMETOOLONG: "the path is too long: use another directory",
    _LOCKED: "another process has been writing for too long: find and stop it, or try again",
    "database or disk is full": "the disk is full: free some space",
    "attempt to write a readonly database": f"the database is read-only: {READ_ONLY}",
    "disk I/O error": "the disk may be full, over quota or failing: check df, quota and the system log",
    "unable to open database file": "the file, the permission to read it or disk space is missing: check the directory",
}
_DAMAGE = ("malformed", "not a database", "no such table", "no such column", "unsupported file format", "not decode")


def explained(error: BaseException, doing: str, directory: str) -> StoreError | UsageError:
    """Turn an error of the system or SQLite into ours, which says what failed, for which store, why, and the remedy."""
    if isinstance(error, UnicodeEncodeError):
        return UsageError(f"the key {error.object!r} cannot be encoded in UTF-8")
    if isinstance(error, OSError):
        cause, remedy = error.strerror or str(error), _REMEDIES.get(error.errno)
    else:
        cause, remedy = str(error), _REMEDIES.get(str(error))
        # SQLite quotes the offending bytes in its messages, so that a decoding error means damage.
        damage = isinstance(error, UnicodeError) or any(sign in cause for sign in _DAMAGE)
        if damage or type(error) is sqlite3.DatabaseError:
            return destroyed(directory, cause)
    kind = StoreUnavailable if cause == _LOCKED else StoreError
    return kind(f"could not {doing} the store {directory}: {cause} ({remedy or 'check the disk'})")


def destroyed(directory: str, cause: str) -> StoreDamaged:
    """The error for a database that is unusable."""
    return StoreDamaged(
        f"the database of the store is damaged: {os.path.join(directory, DBNAME)}: {cause}. "
        f"Recover what can be read with `oncemore repair --store {shlex.quote(directory)}`, restore a backup of the "
        f"directory, or move {directory} aside to start fresh"
    )


def share_folder(path: str, database: str) -> None:
    """`share` a new folder, but nothing that a link leads to: its owner could have put one there since."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            share(descriptor, database)
        finally:
            os.close(descriptor)


def share(new: int, database: str) -> None:
    """Let whoever may use the database use this new file or folder (a descriptor), too, as SQLite does with its journal.

    So a store stays usable for its owner after `sudo`, and for all users whom its mode lets in.
    """
    with contextlib.suppress(OSError):  # the file system has no owners or modes
        like, now = os.stat(database), os.stat(new)
        mode = stat.S_IMODE(like.st_mode) & 0o666
        if stat.S_ISDIR(now.st_mode):
            mode |= (mode & 0o444) >> 2 | now.st_mode & stat.S_ISGID  # who may read it may enter it
        if mode != stat.S_IMODE(now.st_mode):
            os.chmod(new, mode)
        if (like.st_uid, like.st_gid) != (now.st_uid, now.st_gid):
            os.chown(new, like.st_uid if os.geteuid() == 0 else -1, like.st_gid)


def file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The type of the file system that `path` is on; None if unknown."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
            return _type_at(os.path.realpath(path), lines.read())
    except OSError:  # not Linux, or no /proc
        return None


def network_file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The type of the network file system that `path` is on; None if it is local or unknown."""
    kind = file_system(path, mounts)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def _type_at(path: str, mountinfo: str) -> str | None:
    best, found = -1, None
    for line in mountinfo.splitlines():
        mounted, _, device = line.partition(" - ")
        fields = mounted.split(" ")
        if len(fields) < 5 or not device:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])  # unescape octal codes
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # If two file systems are mounted at the same point, the later one hides the earlier.
        if inside and len(point) >= best:
            best, found = len(point), device.split(" ", 1)[0]
    return found
