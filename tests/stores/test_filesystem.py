"""Telling a network file system from a local one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from oncemore.errors import StoreError
from oncemore.stores import filesystem, open_store
from oncemore.stores.disk import DiskStore
from oncemore.stores.filesystem import network_file_system

MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /net rw,relatime shared:5 master:1 - nfs4 server:/export rw,vers=4.2
24 23 0:41 / /net/local rw - tmpfs tmpfs rw
25 22 0:42 / /with\040space\134and rw - cifs //server/share rw
26 22 0:43 / /twice rw - nfs server:/a rw
27 22 8:1 / /twice rw - xfs /dev/sda1 rw
28 22 0:44 / /ssh rw - fuse.sshfs me@host: rw
29 22 8:2 / /usb rw - fuseblk /dev/sdb1 rw
a line that means nothing
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", None),
        ("/net", "nfs4"),
        ("/net/deep/not/there/yet", "nfs4"),
        ("/network", None),
        ("/net/local/x", None),
        ("/with space\\and/x", "cifs"),
        ("/twice/x", None),
        ("/ssh/x", "fuse.sshfs"),
        ("/usb/x", None),
    ],
)
def test_the_nearest_mount_decides(tmp_path, path, kind):
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert network_file_system(path, str(tmp_path / "mountinfo")) == kind


def test_a_system_that_does_not_tell_counts_as_local(tmp_path):
    assert network_file_system("/", str(tmp_path / "missing")) is None


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a mount of its own to detect")
def test_a_store_on_a_network_file_system_is_refused_unless_forced(monkeypatch):
    kind = filesystem._type_at("/dev/shm", Path("/proc/self/mountinfo").read_text())
    monkeypatch.setattr(filesystem, "NETWORK_FILE_SYSTEMS", filesystem.NETWORK_FILE_SYSTEMS | {kind})
    folder = tempfile.mkdtemp(dir="/dev/shm")
    try:
        with pytest.raises(StoreError, match=rf"network file system \({kind}\).*network=allow"):
            DiskStore(folder + "/s")
        assert os.listdir(folder) == []
        assert open_store(f"disk://{folder}/s?network=allow").commit(put={"a": [b"1"]})
        assert DiskStore(folder + "/s", allow_network_filesystem=True).get("a") == b"1"
    finally:
        shutil.rmtree(folder)


def test_a_new_folder_is_shared_like_the_database_but_nothing_that_a_link_in_its_place_leads_to(tmp_path: Path) -> None:
    database, folder, link = tmp_path / "cache.db", tmp_path / "folder", tmp_path / "link"
    database.touch()
    database.chmod(0o666)
    folder.mkdir(mode=0o700)
    link.symlink_to(folder)
    filesystem.share_folder(str(link), str(database))
    assert folder.stat().st_mode & 0o777 == 0o700
    filesystem.share_folder(str(folder), str(database))
    assert folder.stat().st_mode & 0o777 == 0o777
