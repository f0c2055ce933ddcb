"""Runs the cells of a notebook as a kernel does: one namespace, each cell compiled under a name of its own."""

import linecache
import sys


def run_cells(path):
    with open(path, encoding="utf-8") as file:
        cells = file.read().split("# %%\n")
    space = sys.modules["__main__"].__dict__
    for number, cell in enumerate(filter(str.strip, cells), 1):
        name = f"<ipython-input-{number}-{abs(hash(cell)):x}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
        exec(compile(cell, name, "exec"), space)


if __name__ == "__main__":
    run_cells(sys.argv[1])
