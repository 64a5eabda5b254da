"""The version of a measurement: a digest of everything that could change its numbers.

It covers all files of the measuring area, the sources of every shared room and module that they import (followed
through the import statements, without importing anything), Python's version, and the versions of the libraries that
these sources name. It leaves out what no measurement runs through: the claims machinery, the console, and the areas'
``cli.py``.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tenfold import __version__

UNMEASURED = ("tenfold.claims", "tenfold.console")
ALWAYS = ("torch", "numpy", "scipy", "numba")


def code_version(measure: Callable[..., object]) -> str:
    """Digest of the sources and library versions behind a measurement.

    Args:
        measure: Top-level function of an importable module.

    Returns:
        16 hexadecimal digits; equal for equal sources and versions, wherever they are installed.

    >>> len(code_version(code_version))
    16
    """
    return _version_of_module(measure.__module__)


def library_versions(measure: Callable[..., object]) -> dict[str, str]:
    """Versions of Python, Tenfold and of the libraries that the sources behind a measurement import.

    Args:
        measure: Top-level function of an importable module.

    >>> 'torch' in library_versions(library_versions)
    True
    """
    return {"tenfold": __version__, **dict(_libraries(frozenset(_closure(measure.__module__)[1])))}


@functools.cache
def _version_of_module(module: str) -> str:
    files, imported = _closure(module)
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(files[name].read_bytes()).digest())
    for library, version in _libraries(frozenset(imported)):
        digest.update(f"{library}=={version}\0".encode())
    return digest.hexdigest()[:16]


@functools.cache
def _closure(module: str) -> tuple[dict[str, Path], set[str]]:
    """The files that a module reaches, by installation-independent names, and the other packages they import."""
    root = module.partition(".")[0]
    folders = {name: _place(name) for name in {root, "tenfold"}}
    files: dict[str, Path] = {}
    imported: set[str] = set()
    waiting = [module]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if name in seen or name.startswith(UNMEASURED):
            continue
        seen.add(name)
        if top not in folders:
            imported.add(top)
            continue
        place = folders[top]
        if place is None:
            continue
        if "." in name:
            waiting.append(name.rpartition(".")[0])  # an import runs the packages above, too
        for path in _sources(name, place):
            inside = path.relative_to(place) if place.is_dir() else Path(path.name)
            files[f"{top}/{inside.as_posix()}"] = path
            if path.suffix == ".py":
                waiting.extend(_imports(path, ".".join([top, *inside.parent.parts])))
    return files, imported


def _place(package: str) -> Path | None:
    """The folder of a package, or the file of a module, without importing it."""
    if package == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        return Path(file) if file else None
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def _sources(name: str, place: Path) -> list[Path]:
    """The files of a module; for a package of Tenfold's first level, an area or shared room, all of its files."""
    parts = name.split(".")[1:]
    if not parts:
        return [place / "__init__.py"] if place.is_dir() else [place]
    target = place.joinpath(*parts)
    if target.is_dir():
        if name.startswith("tenfold.") and len(parts) == 1:
            return sorted(
                path
                for path in target.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts and path.relative_to(target) != Path("cli.py")
            )
        return [target / "__init__.py"] if (target / "__init__.py").exists() else []
    source = target.with_suffix(".py")
    return [source] if source.exists() else []


def _imports(path: Path, package: str) -> Iterator[str]:
    """Names of the modules that a file of ``package`` imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)  # may be a module of the package


@functools.cache
def _libraries(imported: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """Name and version of each distribution that brings one of the imported packages, and of Python."""
    packages = {*imported, *ALWAYS} - sys.stdlib_module_names
    names = {name for package in packages if importlib.util.find_spec(package) for name in _distributions(package)}
    versions = {name.lower(): importlib.metadata.version(name) for name in names}
    return tuple(sorted({**versions, "python": platform.python_version()}.items()))


def _distributions(package: str) -> Sequence[str]:
    """The distributions of a package; most bear its name, and looking through all of them takes a second."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _all_distributions().get(package, [])
    return [package]


@functools.cache
def _all_distributions() -> Mapping[str, Sequence[str]]:
    return importlib.metadata.packages_distributions()
