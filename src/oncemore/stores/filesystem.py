"""What is under a disk store: which file system it is, and what errors from below mean to a user."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sqlite3

from diskcache.core import DBNAME

from ..errors import StoreDamaged, StoreError, StoreUnavailable, UsageError

_NETWORK = """
    9p afs beegfs ceph cifs coda davfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs pvfs2 smb2 smb3 smbfs
    fuse.blobfuse fuse.blobfuse2 fuse.ceph fuse.curlftpfs fuse.davfs fuse.gcsfuse fuse.glusterfs fuse.grpcfuse
    fuse.juicefs fuse.mount-s3 fuse.nfs fuse.osxfs fuse.rclone fuse.s3fs fuse.smbnetfs fuse.sshfs
"""
# SQLite's locks and shared memory do not hold between the machines that mount these.
NETWORK_FILE_SYSTEMS = frozenset(_NETWORK.split())

READ_ONLY = "put the store on a disk that can be written"
_LOCKED = "database is locked"
_PERMISSION = "permission is missing: change the owner or mode, or name another directory"
_REMEDIES: dict[int | str | None, str] = {  # by what the system says, or by what SQLite says
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space or have it raised",
    errno.EFBIG: "a file would exceed the largest size allowed here: raise the limit (ulimit -f)",
    errno.EROFS: f"the file system is read-only: {READ_ONLY}",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EMFILE: "this process has too many open files: close some or raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files",
    errno.ENOTDIR: "part of the path is a file: name another directory",
    errno.EEXIST: "a file of that name is in the way: name another directory",
    errno.ENAMETOOLONG: "the path is too long: name another directory",
    _LOCKED: "another process has been writing for too long: see which, or try again",
    "database or disk is full": "the disk is full: free some space",
    "attempt to write a readonly database": f"it is read-only: {READ_ONLY}",
    "disk I/O error": "the disk may be full, over quota or failing: see df, quota and the system log",
    "unable to open database file": "it is missing, or permission or disk space is: see the directory",
}
_DAMAGE = ("malformed", "not a database", "no such table", "no such column", "unsupported file format", "not decode")


def explained(error: BaseException, doing: str, directory: str) -> StoreError | UsageError:
    """An error of the system or of SQLite as ours: what could not be done, to which store, why, what helps."""
    if isinstance(error, UnicodeEncodeError):
        return UsageError(f"the key {error.object!r} is not valid text")
    if isinstance(error, OSError):
        cause, remedy = error.strerror or str(error), _REMEDIES.get(error.errno)
    else:
        cause, remedy = str(error), _REMEDIES.get(str(error))
        # SQLite's messages quote what they complain of: a decoding error is one about garbage.
        damage = isinstance(error, UnicodeError) or any(sign in cause for sign in _DAMAGE)
        if damage or type(error) is sqlite3.DatabaseError:
            return destroyed(directory, cause)
    kind = StoreUnavailable if cause == _LOCKED else StoreError
    return kind(f"could not {doing} the store {directory}: {cause} ({remedy or 'see whether the disk is in order'})")


def destroyed(directory: str, cause: str) -> StoreDamaged:
    """The error for a database that cannot be used any more."""
    return StoreDamaged(
        f"the database of a store is damaged: {os.path.join(directory, DBNAME)}: {cause}. "
        f"`oncemore repair --store {shlex.quote(directory)}` recovers what can be read; or put back a copy of the "
        f"directory, or move {directory} aside: the next run starts fresh"
    )


def file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The type of the file system that `path` is on, or None where that cannot be told."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
            return _type_at(os.path.realpath(path), lines.read())
    except OSError:  # not Linux, or no /proc
        return None


def network_file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The type of the network file system that `path` is on, or None when it is local or cannot be told."""
    kind = file_system(path, mounts)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def _type_at(path: str, mountinfo: str) -> str | None:
    best, found = -1, None
    for line in mountinfo.splitlines():
        mounted, _, device = line.partition(" - ")
        fields = mounted.split(" ")
        if len(fields) < 5 or not device:
            continue
        point = _unescaped(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later covers the earlier.
        if inside and len(point) >= best:
            best, found = len(point), device.split(" ", 1)[0]
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text) if "\\" in text else text
