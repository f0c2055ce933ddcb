"""Systems that refuse or lie: failing disks, wrong clocks, odd homes, masks and links."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from oncemore import UsageError, settings
from oncemore.testing import in_fork
from tests.processes import Script

STEPS = """
    import os, sys, warnings
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed(code="version", version="1")
    def block(n, size):
        print("RAN", n, size)
        return bytes([n]) * size

    with checkpoint_scope("conditions", store="store"):
        for n in range(int(sys.argv[1])):
            for size in (100, 50_000):
                assert block(n, size) == bytes([n]) * size
"""

CLOCK = """
    import sys, time
    real, shift = time.time, float(sys.argv[2])
    time.time = lambda: real() + shift
"""


@pytest.mark.parametrize("shift", [-3_600, 365 * 86_400], ids=["back an hour", "forward a year"])
def test_a_clock_that_jumps_neither_loses_nor_repeats_a_step(script: Script, shift: int) -> None:
    def run(count: int, by: int) -> list[str]:
        return script(CLOCK + STEPS, str(count), str(by), cold=True).lines

    assert len(run(2, 0)) == 4
    assert run(3, shift) == ["RAN 2 100", "RAN 2 50000"]
    assert run(3, 0) == []


DESCRIPTORS = """
    import os, resource, sys, warnings
    from oncemore import checkpoint_scope, checkpointed

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    @checkpointed
    def block(n, size):
        print("RAN", n, size)
        return os.urandom(size)

    with warnings.catch_warnings(record=True) as caught, checkpoint_scope("descriptors", store="store"):
        warnings.simplefilter("always")
        block(0, 10)
        taken = []
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        assert len(block(1, 1_000_000)) == 1_000_000
        for descriptor in taken:
            os.close(descriptor)
        block(2, 1_000_000)
    print(*[each.message for each in caught], sep="\\n")
"""


def test_without_descriptors_a_step_returns_its_value_and_says_that_it_is_not_kept(script: Script) -> None:
    first = script(DESCRIPTORS, cold=True)
    assert first.lines[:3] == ["RAN 0 10", "RAN 1 1000000", "RAN 2 1000000"]
    assert "block" in first.out and "Too many open files" in first.out
    again = script(DESCRIPTORS.replace("while True", "while False"), cold=True)
    assert [line for line in again.lines if line.startswith("RAN")] == ["RAN 1 1000000"]


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes to files of the store fail with the error in FAULT, after as many as FAULT_AFTER, once the file `fault` exists. */
static int refused(int fd) {
    static int count;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (!strstr(path, "/store/") || strstr(path, "-shm") || access("fault", F_OK)) { return 0; }
    return count++ >= atoi(getenv("FAULT_AFTER"));
}
#define FAIL(fd) if (refused(fd)) { errno = atoi(getenv("FAULT")); return -1; }
ssize_t write(int fd, const void *data, size_t size) {
    FAIL(fd)
    return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, data, size);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    FAIL(fd)
    return ((ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64"))(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    FAIL(fd)
    return ((ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(fd, data, size, at);
}
"""

FAILING = """
    import os, sys, warnings
    from pathlib import Path
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed(code="version", version="1")
    def block(n, size):
        print("RAN", n, size)
        return os.urandom(size) if n < 0 else bytes([n]) * size

    with checkpoint_scope("conditions", store="store"):
        for n in range(3):
            if n == 1 and "fail" in sys.argv:
                Path("fault").touch()
            if n == 2 and "fail" in sys.argv:
                Path("fault").unlink()
            for size in (100, 20_000_000 if n == 1 else 50_000):
                assert block(n, size) == bytes([n]) * size
    print("done")
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the library that makes writes fail")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True)
    return folder / "shim.so"


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_disk_that_fails_in_a_transaction_costs_that_checkpoint_and_nothing_else(
    script: Script, shim: Path, number: int, after: int
) -> None:
    fault = {"LD_PRELOAD": str(shim), "FAULT": str(number), "FAULT_AFTER": str(after)}
    done = script(FAILING, "fail", env=fault)
    assert done.lines[-1] == "done"
    assert "Traceback" not in done.err
    assert "step block: the result was not saved: could not write to the store" in done.err
    assert ("the disk is full: free some space" if number == errno.ENOSPC else "disk") in done.err
    again = script(FAILING)
    assert again.err == ""
    assert again.lines[-1] == "done"
    assert not {"RAN 0 100", "RAN 0 50000", "RAN 2 100", "RAN 2 50000"} & set(again.lines)
    assert len(again.lines) > 1
    assert script(FAILING).lines == ["done"]


@pytest.mark.parametrize("mask", ["000", "077"])
def test_whatever_the_umask_a_run_resumes_and_only_its_owner_can_read(
    script: Script, mask: str, isolated: Path
) -> None:
    source = f"    import os\n    os.umask(0o{mask})\n" + STEPS
    assert len(script(source, "2").lines) == 4
    assert script(source, "2").lines == []
    found = [path for path in [*(script.folder / "store").rglob("*"), isolated / ".config/oncemore/key"]]
    assert found
    assert not [path for path in found if path.stat().st_mode & 0o077]


def test_a_home_that_cannot_be_written_names_the_key_file_and_the_variable(script: Script) -> None:
    (script.folder / "file").touch()
    home = {"HOME": str(script.folder / "file" / "home"), "XDG_CONFIG_HOME": None}
    done = script(STEPS, "1", env=home, expect=1)
    assert f"cannot read or create the key file {home['HOME']}/.config/oncemore/key" in done.err
    assert "set ONCEMORE_KEY to a secret of your own" in done.err
    assert len(script(STEPS, "1", env={**home, "ONCEMORE_KEY": "secret"}).lines) == 2
    assert script(STEPS, "1", env={**home, "ONCEMORE_KEY": "secret"}).lines == []


def test_a_home_that_is_no_absolute_path_gets_no_key_and_says_so(script: Script) -> None:
    done = script(STEPS, "1", env={"HOME": "here", "XDG_CONFIG_HOME": None}, expect=1)
    assert "can't locate the key file: HOME=here is not absolute; set HOME, or set ONCEMORE_KEY" in done.err
    assert not (script.folder / "here").exists()


def test_a_relative_folder_for_settings_is_ignored(script: Script, isolated: Path) -> None:
    assert len(script(STEPS, "1", env={"HOME": str(isolated), "XDG_CONFIG_HOME": "here"}).lines) == 2
    assert (isolated / ".config/oncemore/key").exists()
    assert not (script.folder / "here").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs a user without a home directory")
def test_a_user_without_a_home_gets_no_key_in_the_current_folder() -> None:
    """As in a container with `--user 4242`."""
    folder = tempfile.mkdtemp()

    def nobody() -> int:
        os.chdir(folder)
        for name in ("HOME", "XDG_CONFIG_HOME", "ONCEMORE_KEY"):
            os.environ.pop(name, None)
        os.setgid(4242)
        os.setuid(4242)
        with pytest.raises(UsageError, match="HOME is not set, and this user has no home directory; set HOME"):
            settings.secret()
        os.environ["ONCEMORE_KEY"] = "given"
        assert settings.secret()
        return 0

    try:
        os.chmod(folder, 0o777)
        assert in_fork(nobody) == 0
        assert os.listdir(folder) == []
    finally:
        shutil.rmtree(folder)


def test_a_store_behind_a_link_is_the_store_it_points_to(script: Script) -> None:
    (script.folder / "store").symlink_to("elsewhere")  # which is not there yet
    assert len(script(STEPS, "1").lines) == 2
    assert (script.folder / "elsewhere" / "cache.db").exists()
    (script.folder / "store").unlink()
    (script.folder / "elsewhere").rename(script.folder / "store")
    assert script(STEPS, "1").lines == []
