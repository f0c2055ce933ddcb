"""What a module is called, and whose it is.

One file has one name here, however it was loaded: run as a script, with `python -m`, or imported. Both the identity
of code and the pickles in a checkpoint need that, or a script would not find again what it recorded when imported.
"""

from __future__ import annotations

import os
import random
import sys
import types
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


def module_of(kind: type) -> str:
    """The name of the module that a class says it is from; empty if it says anything but a name, or has it from `types`.

    Before Python 3.12, `dataclasses.make_dataclass` leaves a class there that `types` has never heard of.
    """
    name: Any = kind.__module__
    if name == "types" and kind.__qualname__ not in vars(types):
        return ""
    return name if isinstance(name, str) else ""


def of_class(kind: type, name: str) -> Any:
    """What a class or a base of it has under a name, None for nothing.

    `getattr` would run whatever descriptors and metaclasses do when they are asked; some make up an answer to every name.
    """
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def global_generators() -> dict[str, Any]:
    """The random generators behind the functions of `random` and `numpy.random`, by name.

    Their states are watched by themselves. An object that merely holds one, as distributions of scipy do, is the same
    object whatever was drawn meanwhile, and holds the same one when it comes back.
    """
    found: dict[str, Any] = {"random": random._inst}
    shared = getattr(loaded("numpy.random.mtrand"), "_rand", None)
    if shared is not None:
        found["numpy.random"], found["numpy.random bits"] = shared, shared._bit_generator
    return found


def global_generator(value: object) -> str | None:
    """The name of a global random generator, None for any other object."""
    return next((name for name, each in global_generators().items() if each is value), None)


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


def is_project_module(name: object) -> bool:
    """Whether the module `name` is the user's own code. The script always is: a pool's worker has another `__main__`.

    So is what names no module at all: a class may have anything as its `__module__`.
    """
    if not isinstance(name, str) or name in ("__main__", "__mp_main__"):
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
