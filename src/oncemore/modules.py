"""What a module is called, and whose it is.

One file has one name here, however it was loaded: run as a script, with `python -m`, or imported. Both the identity
of code and the pickles in a checkpoint need that, or a script would not find again what it recorded when imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def loaded(name: str) -> Any:
    """The module, if it is loaded by now. Not one that another thread is still loading: half of it is missing."""
    module = sys.modules.get(name)
    if module is None:
        return None
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


@cache
def name_of_file(path: str) -> str:
    """The dotted name of a source file, from the packages (folders with `__init__.py`) around it."""
    folder, base = os.path.split(os.path.abspath(path))
    stem = os.path.splitext(base)[0]
    names = [] if stem == "__init__" else [stem]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        names.insert(0, package)
    return ".".join(names)


def canonical_name(module: str) -> str:
    """The name that stands for `module` in everything we keep."""
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    path = getattr(main, "__file__", None)
    if path and _sent_from and not is_project_file(path):
        path = _sent_from[-1]
    return name_of_file(path) if path else "__main__"


_sent_from: list[str] = []


def came_from(space: Mapping[str, Any]) -> None:
    """A step of a script was sent here, whose globals are `space`. In a pool's worker, `__main__` means that script."""
    path = space.get("__file__")
    if space.get("__name__") == "__main__" and isinstance(path, str) and path not in _sent_from:
        _sent_from.append(path)


def name_of_namespace(space: Mapping[str, Any]) -> str:
    """The name that stands for a module's globals, also where they travelled without their module."""
    path = space.get("__file__")
    if isinstance(path, str) and is_project_file(path):
        return name_of_file(path)
    return str(space.get("__name__", ""))


def project_folder(space: Mapping[str, Any]) -> str | None:
    """The folder that moves as a whole when somebody moves the project: where the import of a module starts."""
    path = space.get("__file__")
    if not isinstance(path, str):
        return None
    folder = os.path.dirname(os.path.abspath(path))
    for _ in range(name_of_file(path).count(".") + (os.path.basename(path) == "__init__.py")):
        folder = os.path.dirname(folder)
    return os.path.dirname(folder) if os.path.basename(folder) == "src" else folder


def find_module(name: str) -> ModuleType:
    """The loaded or importable module behind a canonical name; the running script answers to its own name."""
    for alias in ("__main__", "__mp_main__"):
        if alias in sys.modules and canonical_name(alias) == name:
            return sys.modules[alias]
    __import__(name)
    return sys.modules[name]


@cache
def _foreign_folders() -> tuple[str, ...]:
    """Where the standard library and oncemore are. (`sysconfig` knows it too, and takes a millisecond to say so.)"""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folders = {os.path.join(prefix, sys.platlibdir, name) for prefix in (sys.exec_prefix, sys.base_exec_prefix)}
    folders |= {os.path.dirname(os.path.abspath(path)) for path in (os.__file__, __file__)}
    real = {os.path.realpath(p) for p in folders}
    return tuple(os.path.join(p, "") for p in folders | real)


@cache
def is_project_file(path: str) -> bool:
    """Whether a source file is the user's own: no standard library, no installed distribution, no oncemore."""
    if path.startswith("<frozen"):
        return False
    if path.startswith("<"):  # stdin, exec, a notebook cell
        return True
    full = os.path.abspath(path)
    if f"{os.sep}site-packages{os.sep}" in full or f"{os.sep}dist-packages{os.sep}" in full:
        return False
    return not full.startswith(_foreign_folders())


def is_project_module(name: str) -> bool:
    """Whether the module `name` is the user's own code. The script always is: a pool's worker has another `__main__`."""
    if name in ("__main__", "__mp_main__"):
        return True
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if path:
        return is_project_file(path)
    if name in sys.builtin_module_names:
        return False
    folders = getattr(module, "__path__", None)
    if folders:  # a package without __init__.py
        return any(is_project_file(os.path.join(folder, "x.py")) for folder in folders)
    return module is None


def is_importable_project(name: str) -> bool:
    """Whether `import name` would give the user's own code. Only the packages around it are loaded to find out."""
    if name in sys.modules:
        return is_project_module(name)
    try:
        spec = find_spec(name)
    except Exception:  # a package around it fails: whoever imports it will meet that
        return False
    if spec is None:
        return False
    inside = [os.path.join(folder, "x.py") for folder in spec.submodule_search_locations or ()]
    places = [spec.origin] if spec.has_location else inside
    return any(place is not None and is_project_file(place) for place in places)


def load_project_module(name: str) -> ModuleType | None:
    """The user's own module of that name, None if there is none that can be loaded."""
    try:
        return import_module(name) if is_importable_project(name) else None
    except Exception:  # as above
        return None
