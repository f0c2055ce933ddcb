"""Globals without an identity of their own: clients, engines, connections, locks. Steps that use them are kept."""

from __future__ import annotations

import logging
import textwrap
from typing import Any

import pytest

from oncemore.identity.values import digest
from tests.processes import Script
from tests.unit.again import skipped_alike

# A stand-in for a library's client, with what such things are made of. It lies among the installed packages.
LIBRARY = """
import itertools, socket, ssl, threading, weakref

class Pool:
    def __init__(self):
        self.lock, self.ids, self.sockets, self.local = threading.RLock(), itertools.count(), [], threading.local()

class Client:
    def __init__(self, base_url="http://a.example.com", api_key=None, **options):
        self.base_url, self.api_key, self.pool, self.calls = base_url, api_key, Pool(), 0
        self.context, self.cookies, self.owner = ssl.create_default_context(), {}, weakref.ref(self.pool)
    def ask(self, question):
        with self.pool.lock:
            self.calls += 1
            self.cookies[question] = next(self.pool.ids)
            self.pool.sockets.append(socket.socket())
        return f"{self.base_url} {question}"
"""
ASK = """
    import sys
    sys.path.append("site-packages")
    from clients import Client
    from oncemore import checkpoint_scope, checkpointed
    URL = "http://a.example.com"
    client = Client(base_url=URL, api_key="sk-very-secret-0123456789", timeout=3)

    @checkpointed
    def ask(question): print("RAN", question); return client.ask(question)
    @checkpointed
    def other(x): print("RAN other"); return x

    with checkpoint_scope("r", store="kept") as run:
        print(ask("one"), ask("two"), other(1))
        for event in run.events():
            if getattr(event, "reason", "new node") != "new node": print("WHY", event.reason)
"""


@pytest.fixture
def library(script: Script) -> Script:
    script.write(LIBRARY, "site-packages/clients.py")
    return script


def ran(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("RAN")]


def test_a_step_that_uses_a_client_is_kept(library: Script) -> None:
    skipped_alike(library, ASK)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("timeout=3", "timeout=4", "timeout=4"),
        ('URL = "http://a.example.com"', 'URL = "http://b.example.com"', "global `script.client`"),
    ],
)
def test_an_edited_statement_runs_it_again_and_shows_why(library: Script, before: str, after: str, shown: str) -> None:
    library(ASK)
    edited = library(ASK.replace(before, after)).lines
    assert ran(edited) == ["RAN one", "RAN two"]
    whys = [line for line in edited if line.startswith("WHY")]
    assert whys and all("global `script.client`" in why and shown in why for why in whys)


def test_a_script_edited_while_it_runs_is_identified_by_what_was_loaded(library: Script) -> None:
    """The file is replaced before the first call; the results of the old client are not recalled for the new one."""
    edit = """
    import pathlib
    file = pathlib.Path(__file__)
    file.write_text(file.read_text().replace("timeout=3", "timeout=4"))
    with checkpoint_scope("""
    first = library(ASK.replace("\n    with checkpoint_scope(", edit))
    assert ran(first.lines) == ["RAN one", "RAN two", "RAN other"]
    assert ran(library(ASK.replace("timeout=3", "timeout=4")).lines) == ["RAN one", "RAN two"]
    assert ran(library(ASK).lines) == []


def test_a_secret_is_nowhere_in_the_store_and_in_no_reason(library: Script) -> None:
    import zstandard

    first = library(ASK)
    second = library(ASK.replace("sk-very-secret-0123456789", "sk-very-secret-9876543210"))
    assert ran(second.lines) == ["RAN one", "RAN two"]
    assert "very-secret" not in first.out + first.err + second.out + second.err
    for path in (library.folder / "kept").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            at = data.find(zstandard.MAGIC_NUMBER.to_bytes(4, "little"))
            while at >= 0:
                try:
                    assert b"very-secret" not in zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
                except zstandard.ZstdError:
                    pass
                at = data.find(zstandard.MAGIC_NUMBER.to_bytes(4, "little"), at + 1)
            assert b"very-secret" not in data


def test_a_client_in_a_holder_stays_and_the_rest_of_the_holder_counts_and_is_restored(library: Script) -> None:
    skipped_alike(
        library,
        """
        import dataclasses, sys, threading
        sys.path.append("site-packages")
        from clients import Client
        from oncemore import checkpoint_scope, checkpointed

        @dataclasses.dataclass
        class App:
            client: object
            count: int = 0
            log: list = dataclasses.field(default_factory=list)

        class Service:
            def __init__(self):
                self.lock, self.client, self.seen, self.calls = threading.Lock(), Client(), {}, 0
            def go(self, x):
                with self.lock:
                    self.calls += 1
                    self.seen[x] = self.calls
                return self.client.ask(x)

        clients, app, service = {"a": Client(), "n": [0]}, App(Client()), Service()

        @checkpointed
        def use(x):
            print("RAN", x)
            clients["n"].append(x); clients[x] = x; app.count += 1; app.log.append(x)
            return clients["a"].ask(x), app.client.ask(x), service.go(x)

        with checkpoint_scope("r"):
            for i in range(3):
                print(use(str(i)), clients["n"], app.count, app.log, service.calls, service.seen, service.lock.locked())
        """,
    )


def test_a_client_that_is_made_when_it_is_needed_is_left_to_the_code(library: Script) -> None:
    skipped_alike(
        library,
        """
        import sys
        sys.path.append("site-packages")
        from clients import Client
        from oncemore import checkpoint_scope, checkpointed
        _client = None
        def client():
            global _client
            if _client is None:
                _client = Client("http://a.example.com")
            return _client
        @checkpointed
        def ask(x): print("RAN", x); return client().ask(x)
        with checkpoint_scope("r"):
            print([ask(str(i)) for i in range(3)])
        """,
    )


def test_a_client_that_a_step_makes_for_others_is_told_of(library: Script) -> None:
    source = """
        import sys
        sys.path.append("site-packages")
        from clients import Client
        from oncemore import checkpoint_scope, checkpointed
        client = None
        @checkpointed
        def connect():
            global client
            client = Client("http://a.example.com")
        @checkpointed
        def ask(x): return client.ask(x)
        with checkpoint_scope("r") as run:
            connect()
            print(ask("x"))
    """
    first, second = library(source), library(source)
    assert first.lines == second.lines == ["http://a.example.com x"]
    assert "run r: 1 step could not be saved: connect (" in second.err


STANDARD = """
    import concurrent.futures, logging, socket, sqlite3, ssl, threading
    from oncemore import checkpoint_scope, checkpointed
    lock, local, context = threading.RLock(), threading.local(), ssl.create_default_context()
    sock, pool, connection = socket.socket(), concurrent.futures.ThreadPoolExecutor(1), sqlite3.connect("data.db")
    connection.execute("create table if not exists t (x)")
    @checkpointed
    def use(x):
        print("RAN", x)
        with lock:
            local.x = x
            connection.execute("insert into t values (?)", (x,))
            connection.commit()
        return sock.family.name, context.verify_mode.name, pool.submit(int, x).result()
    with checkpoint_scope("r"):
        print([use(i) for i in range(3)], connection.execute("select count(*) from t").fetchone())
"""


def test_those_of_the_standard_library(script: Script) -> None:
    skipped_alike(script, STANDARD)


REAL = {
    "openai": "OpenAI(api_key='sk-0123456789abcdef', base_url='http://localhost:9')",
    "anthropic": "Anthropic(api_key='sk-0123456789abcdef')",
    "httpx": "Client(base_url='http://localhost:9')",
    "requests": "Session()",
    "boto3": "client('s3', region_name='eu-west-1', aws_access_key_id='a', aws_secret_access_key='b')",
    "sqlalchemy": "create_engine('sqlite://')",
}


@pytest.mark.parametrize("package", REAL)
def test_those_of_well_known_packages(script: Script, package: str) -> None:
    pytest.importorskip(package)
    source = f"""
        import {package}
        from oncemore import checkpoint_scope, checkpointed
        client = {package}.{REAL[package]}
        @checkpointed
        def use(x): print("RAN", x); return type(client).__name__, x
        with checkpoint_scope("r"):
            print([use(i) for i in range(3)])
    """
    skipped_alike(script, textwrap.dedent(source))


# -- clients that an object makes when it needs one

LAZY = """
    import sqlite3
    from oncemore import checkpoint_scope, checkpointed

    class Database:
        INIT
        ASKED
        def client(CLS):
            BODY

    database = Database()

    @checkpointed
    def ask(n):
        print("RAN ask", n)
        return database.client().execute("select ?", (n,)).fetchone()

    @checkpointed
    def ask_of(given, n):
        print("RAN ask_of", n)
        given.asked = n
        return given.client().execute("select ?", (n,)).fetchone()

    with checkpoint_scope("run"):
        print(ask(1), ask(2))
        print(database.client().execute("select 3").fetchone())
        print(ask_of(database, 4), ask_of(database, 5), database.asked)
        other = Database()
        print(ask_of(other, 6), ask_of(other, 7), other.client().execute("select 8").fetchone(), other.asked)
"""
CONNECT = "sqlite3.connect(':memory:')"


@pytest.mark.parametrize(
    ("init", "body"),
    [
        ("_client = None", f"if self._client is None: self._client = {CONNECT}\n            return self._client"),
        (
            "def __init__(self): self._client = None",
            f"if not self._client:\n                self._client = {CONNECT}\n            return self._client",
        ),
        ("", f"if not hasattr(self, '_client'): self._client = {CONNECT}\n            return self._client"),
        ("", f"self._client = getattr(self, '_client', None) or {CONNECT}\n            return self._client"),
        (
            "",
            f"try: return self._client\n            except AttributeError: self._client = {CONNECT}; return self._client",
        ),
    ],
)
def test_a_client_that_an_object_makes_when_it_needs_one_does_not_count(script: Script, init: str, body: str) -> None:
    source = LAZY.replace("INIT", init).replace("ASKED", "").replace("CLS", "self").replace("BODY", body)
    assert skipped_alike(script, source).lines == [
        "(1,) (2,)",
        "(3,)",
        "(4,) (5,) 5",
        "(6,) (7,) (8,) 7",
    ]


def test_a_client_that_a_class_makes_when_it_needs_one_does_not_count(script: Script) -> None:
    body = f"if cls._client is None: cls._client = {CONNECT}\n            return cls._client"
    source = LAZY.replace("INIT", "_client = None").replace("ASKED", "@classmethod").replace("CLS", "cls")
    skipped_alike(script, source.replace("BODY", body))


class Link:
    """Makes the next one when it is needed."""

    def __init__(self) -> None:
        self._next: Any = None

    def next(self) -> Any:
        if self._next is None:
            self._next = Link()
        return self._next


def test_a_long_chain_of_what_objects_made_when_they_needed_it_has_an_identity() -> None:
    def chain(length: int, last: Any) -> Link:
        first = link = Link()
        for _ in range(length):
            link = link.next()
        link._next = last
        return first

    assert digest(chain(60, None)) == digest(chain(60, None)) != digest(chain(59, None))  # 2**60 looks would not end


def test_what_an_object_made_may_lead_back_to_it() -> None:
    link = Link()
    link._next = logging.PlaceHolder(link)  # type: ignore[arg-type]
    assert digest(link) == digest(link)


def test_a_client_that_an_object_was_given_still_counts(script: Script) -> None:
    init = "def __init__(self, client=None): self._client = client"
    body = f"if self._client is None: self._client = {CONNECT}\n            return self._client"
    source = LAZY.replace("INIT", init).replace("ASKED", "").replace("CLS", "self").replace("BODY", body)
    done = script(source, expect=1)
    assert "argument `given` holds a sqlite3.Connection at ._client" in done.err


def test_what_cannot_be_kept_of_a_global_is_named(script: Script) -> None:
    source = """
        import sqlite3
        from oncemore import checkpoint_scope, checkpointed

        CLIENTS = {}

        @checkpointed
        def connect(name): CLIENTS[name] = sqlite3.connect(":memory:")

        with checkpoint_scope("run"):
            connect("a")
    """
    told = script(source).err
    assert "step connect: the result was not saved: what it put into global `script.CLIENTS` is a Connection" in told
