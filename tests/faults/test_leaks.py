"""Nothing grows with the number of steps and scopes but what a run has to know of its steps."""

from __future__ import annotations

from tests.processes import Script

LEAKS = """
    import asyncio, gc, os, threading
    from pathlib import Path
    from oncemore import checkpoint_scope, checkpointed, open_store

    store = open_store("store")  # open throughout

    @checkpointed
    def small(n):
        return [n]

    @checkpointed
    def large(n):
        return bytes([n % 256]) * 100_000

    @checkpointed
    async def awaited(n):
        return n

    def scope(number, steps):
        with checkpoint_scope(f"run {number}", store="store"):
            for n in range(steps):
                small(n)
                large(n % 3)

            async def tasks():
                await asyncio.gather(*[awaited(n) for n in range(steps)])

            asyncio.run(tasks())

    def counted():
        gc.collect()
        known = {"cache.db", "cache.db-wal", "cache.db-shm", "cache.db-locks", ".gitignore"}
        return {
            "descriptors": len(os.listdir("/dev/fd")) <= 150,  # two for each thread of the pool, and a few
            "threads": sum(thread.name == "oncemore-started" for thread in threading.enumerate()) <= 10,
            "pool": sum(thread.name.startswith("oncemore-store") for thread in threading.enumerate()) <= 32,
            "temporary": [path.name for path in Path("store").iterdir() if path.is_file() and path.name not in known],
            "journal": sum(path.stat().st_size for path in Path("store").glob("*-wal")) < 20_000_000,
        }

    for number in range(3):
        scope(number, 40)  # 32 threads of the pool have connections by now
    before = counted()
    for number in range(3, 13):
        scope(number, 40)
    for number in range(40):
        with checkpoint_scope(f"short {number}", store="store"):
            small(number)
    assert before["threads"] and counted() == before, (counted(), before)
    print("scopes")

    with checkpoint_scope("long", store="store"):
        for n in range(200):
            small(n)
        gc.collect()
        objects = len(gc.get_objects())
        for n in range(200, 1200):
            small(n)
        gc.collect()
        grown = len(gc.get_objects()) - objects
        assert grown < 1000, grown  # less than one object a step
    print("steps")
"""


def test_descriptors_threads_temporary_files_and_objects_do_not_grow_with_steps_and_scopes(script: Script) -> None:
    assert script(LEAKS).lines == ["scopes", "steps"]


RUNS = """
    import gc, random, tracemalloc
    from oncemore import checkpoint_scope, checkpointed

    @checkpointed
    def plain(n):
        return n

    @checkpointed
    def draws(n):
        return random.random()

    def runs(step, name, count):
        for number in range(count):
            with checkpoint_scope(f"{name} {number}", store="store"):
                step(number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    runs(draws, "before", 120)
    tracemalloc.start()
    for step in plain, draws:
        before = runs(step, f"a {step}", 120)
        grown = (runs(step, f"b {step}", 200) - before) / 200
        assert grown < 2_000, (step, grown)  # bytes a run
        print("few")
"""


def test_a_process_remembers_little_of_each_run_that_it_had_open(script: Script) -> None:
    assert script(RUNS).lines == ["few", "few"]
