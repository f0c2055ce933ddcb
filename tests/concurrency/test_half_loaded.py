"""Libraries that another thread is loading at this moment: half of them is missing, and nobody can have a value of theirs yet."""

from __future__ import annotations

import importlib.util

import pytest

from tests.processes import Script

LIBRARIES = [name for name in ("numpy", "pandas", "polars", "pyarrow", "torch") if importlib.util.find_spec(name)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("parts", [1, 4])
def test_steps_run_and_are_skipped_while_another_thread_loads_a_library(
    library: str, parts: int, script: Script
) -> None:
    """The other thread stops when it has come to so many parts of the library, until the steps are done."""
    done = script(
        f"""
        import random, sys, threading
        from oncemore import checkpoint_scope, checkpointed

        left, reached, go = {parts}, threading.Event(), threading.Event()

        def gate(frame, event, arg):
            global left
            if event == "call" and frame.f_code.co_name == "<module>" and frame.f_globals["__name__"].startswith({library + "."!r}):
                left -= 1
                if not left:
                    reached.set()
                    go.wait(60)

        class Thing:
            def __init__(self, content):
                self.content = content

        @checkpointed
        def step(number, mapping, thing):
            print("ran", number)
            thing.content.append(random.random())
            return {{"number": number, "pairs": [(number, thing.content)]}}

        def load():
            sys.setprofile(gate)
            import {library}

        thread = threading.Thread(target=load)
        thread.start()
        assert reached.wait(60)
        print({library!r} in sys.modules)
        for _ in range(2):
            random.seed(1)
            with checkpoint_scope("half"):
                found = [step(number, {{"a": {{1, 2}}, "b": [b"c" * 5000]}}, Thing([number])) for number in range(2)]
            print(len(found[1]["pairs"][0][1]))
        go.set()
        thread.join()
        """
    )
    assert done.out.split("\n")[:5] == ["True", "ran 0", "ran 1", "2", "2"], done.err
