"""The ``config.json`` of a model's folder: the constructor's arguments, and which class of which version wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tenfold.errors import InputError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
CLASS, VERSION = "_class", "_tenfold_version"  # the keys of config.json that are not arguments


def read_config(path: Path) -> dict[str, Any]:
    """The arguments, class and version in a ``config.json``.

    Raises:
        InputError: There is none, or it is no JSON object.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"this is no model folder: it has no {CONFIG}", path=path.parent) from error
    except json.JSONDecodeError as error:
        raise InputError(f"this is not JSON: {error.msg}", path=path, line=error.lineno) from error
    except UnicodeDecodeError as error:
        raise InputError("this is not JSON: it is not text", path=path) from error
    if not isinstance(config, dict):
        raise InputError("this must be a JSON object of the model's arguments", path=path)
    return config


def read_arguments(folder: Path, kind: str) -> dict[str, Any]:
    """The constructor's arguments that a folder was written with.

    Args:
        folder: The model's.
        kind: Name of the class that it must be of.

    Raises:
        InputError: It is no model's folder, or that of another class.
    """
    config = read_config(folder / CONFIG)
    found = config.pop(CLASS, None)
    if found != kind:
        held = f"this is the folder of a {found}" if found else f"there is no {CLASS!r} in it"
        raise InputError(f"{held}; a {kind} was asked for", path=folder / CONFIG)
    config.pop(VERSION, None)
    return config


def check_replaceable(folder: Path) -> None:
    """Refuses a folder whose ``config.json`` is not Tenfold's.

    Raises:
        InputError: It is another program's.
    """
    if (folder / CONFIG).exists():
        try:
            found = CLASS in read_config(folder / CONFIG)
        except InputError:
            found = False
        if not found:
            raise InputError("this folder holds another program's config.json; give another folder", path=folder)
