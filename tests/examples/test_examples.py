"""The examples do what they say: each is run, killed and run again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from oncemore import History
from tests.processes import SRC

EXAMPLES = SRC.parent / "examples"


def start(name: str, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(SRC), "ONCEMORE_STORE": ".oncemore"}  # not that of this project
    command = [sys.executable, str(EXAMPLES / name), *args]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(name: str, *args: str) -> tuple[int, str, str]:
    process = start(name, *args)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


class Service:
    """A small HTTP service; subclasses say how it behaves."""

    def __init__(self) -> None:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(*service.post(body))

            def do_GET(self) -> None:
                self.answer(200, service.get(parse_qs(urlparse(self.path).query)))

            def answer(self, status: int, text: str) -> None:
                try:
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(text.encode())
                except BrokenPipeError:
                    pass  # the client was killed

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def post(self, body: dict) -> tuple[int, str]:
        raise NotImplementedError

    def get(self, query: dict) -> str:
        raise NotImplementedError


class Labeller(Service):
    """Fails one call in four, and counts the calls it was paid for."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.random = random.Random(3)
        super().__init__()

    def post(self, body: dict) -> tuple[int, str]:
        if self.random.random() < 0.25:
            return 503, "busy"
        self.paid.append(body["text"])
        return 200, json.dumps({"label": f"good {len(body['text'])}"})


class Postbox(Service):
    """Takes messages; once it takes one and then lets the caller wait until it is killed."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.received = threading.Event()
        self.stall = threading.Event()
        super().__init__()

    def post(self, body: dict) -> tuple[int, str]:
        self.taken.append(body["key"])
        if not self.received.is_set():
            self.received.set()
            self.stall.wait(60)
        return 200, f"receipt {body['key']}"

    def get(self, query: dict) -> str:
        key = query["key"][0]
        return f"receipt {key}" if key in self.taken else ""


@pytest.fixture
def postbox() -> Iterator[Postbox]:
    service = Postbox()
    yield service
    service.stall.set()
    service.server.shutdown()


def test_a_training_that_is_killed_ends_bit_for_bit_like_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    code, expected, _ = finish("training.py")
    assert code == 0
    monkeypatch.chdir(tmp_path / "killed")
    seen: list[int] = []
    for stop in (7, 21):
        process = start("training.py")
        assert process.stderr is not None
        epochs = []
        for line in process.stderr:
            epochs.append(int(line.split()[1].rstrip(":")))
            if epochs[-1] >= stop:
                process.kill()
                break
        process.wait()
        seen.append(epochs[0])
    code, out, err = finish("training.py")
    assert (code, out) == (0, expected)
    assert seen == [0, 5]
    assert err.startswith("epoch 20:")


def test_a_batch_keeps_what_was_paid_for_and_tries_only_the_failures_again() -> None:
    service = Labeller()
    process = start("labels.py", service.url)
    time.sleep(0.1)
    while len(service.paid) < 10 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    outputs = []
    for _ in range(30):
        code, out, err = finish("labels.py", service.url)
        outputs.append(out)
        if code == 0:
            break
        assert "failed: review number" in err
    assert json.loads(outputs[-1].splitlines()[1]) == [f"good {len(f'review number {n}')}" for n in range(60)]
    # at most those under way when it was killed were paid for twice
    assert 60 <= len(service.paid) <= 66


def test_an_etl_brings_its_files_back_and_announces_once(tmp_path: Path, postbox: Postbox) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    process = start("etl.py", str(folder), postbox.url)
    assert postbox.received.wait(60)
    process.kill()
    process.communicate()
    before = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shutil.rmtree(folder / "totals")
    (folder / "orders.csv").unlink()
    code, out, err = finish("etl.py", str(folder), postbox.url)
    assert code == 0, err
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert len(before) == 18
    assert len(postbox.taken) == 1
    assert f"receipt receipt {postbox.taken[0]}" in out
    assert finish("etl.py", str(folder), postbox.url)[1] == out
    assert len(postbox.taken) == 1


def test_the_approval_waits_for_its_answer_and_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = finish("approve.py")
    assert (code, out) == (75, "writing\n")
    assert "oncemore answer report publish yes" in err
    History().answer("report", "publish", "yes")
    assert finish("approve.py") == (0, "published\n", "")
