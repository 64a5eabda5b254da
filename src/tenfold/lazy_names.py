"""Public names of a package that are imported when they are first used, so that its help and its lighter parts stay fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package: each name comes from its module in the package, imported at first use.

    Args:
        package: ``__name__`` of the package.
        homes: Public name -> module in which it is defined.

    Raises:
        AttributeError: From the returned function, for a name that the package does not have.

    >>> lazy_names("tenfold", {"InputError": "errors"})("InputError").__name__
    'InputError'
    """

    def resolve(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return resolve
