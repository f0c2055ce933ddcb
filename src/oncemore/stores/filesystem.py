"""The file system under a disk store: what kind it is, and what its refusals mean to a user."""

from __future__ import annotations

import errno
import os
import re

from ..errors import StoreError

_NETWORK = """
    9p afs beegfs ceph cifs coda davfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs pvfs2 smb2 smb3 smbfs
    fuse.blobfuse fuse.blobfuse2 fuse.ceph fuse.curlftpfs fuse.davfs fuse.gcsfuse fuse.glusterfs fuse.grpcfuse
    fuse.juicefs fuse.mount-s3 fuse.nfs fuse.osxfs fuse.rclone fuse.s3fs fuse.smbnetfs fuse.sshfs
"""
# SQLite's locks and shared memory do not hold between the machines that mount these.
NETWORK_FILE_SYSTEMS = frozenset(_NETWORK.split())
# They set room aside in one go (elsewhere the C library may do it instead, by writing to every block), and what is mapped
# from them does not go away with a connection.
LOCAL_FILE_SYSTEMS = frozenset({"btrfs", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space or have it raised",
    errno.EFBIG: "a file would exceed the largest size allowed here: raise the limit (ulimit -f)",
    errno.EROFS: "the file system is read-only: put the store on a disk that can be written",
    errno.EACCES: "permission is missing: change the owner or mode, or name another directory",
    errno.EPERM: "permission is missing: change the owner or mode, or name another directory",
    errno.EMFILE: "this process has too many open files: close some or raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files",
    errno.ENOTDIR: "part of the path is a file: name another directory",
    errno.EEXIST: "a file of that name is in the way: name another directory",
    errno.ENAMETOOLONG: "the path is too long: name another directory",
}


def describe(error: OSError, doing: str, path: str) -> StoreError:
    """An operating system's refusal as ours: what could not be done, to which store, why, and what helps."""
    cause = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "see whether the disk is in order")
    return StoreError(f"could not {doing} the store {path}: {cause} ({remedy})")


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
