"""Checkpoints as safetensors files: the tensors as tensors, all the rest as JSON in the header. Nothing in them can
run code.

What a checkpoint may hold is what Lightning, torch's optimizers and schedulers keep: tensors, numpy arrays, numbers,
text, None, and lists, tuples, dicts and Counters of these. Anything else is refused when it is saved, by its name.
Files are written atomically, and a checksum of the tensors tells a damaged one when it is read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tenfold.errors import InputError
from tenfold.files import atomic_path

FORMAT = "tenfold-checkpoint-1"
MARK = "$"  # the key that tells an encoded value from a plain dict
NAME = re.compile(r"step-(\d{8,})\.safetensors")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def checkpoint_path(folder: Path, step: int) -> Path:
    """The checkpoint's file after `step` optimizer steps.

    >>> checkpoint_path(Path("run"), 120).name
    'step-00000120.safetensors'
    """
    return folder / f"step-{step:08d}.safetensors"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def last_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint in a folder, or None.

    >>> last_checkpoint("/there/is/no/such/folder") is None
    True
    """
    found = list_checkpoints(Path(folder))
    return found[-1] if found else None


def clear_checkpoints(folder: str | Path) -> None:
    """Deletes the checkpoints in a folder, and nothing else; for when training is done and the model is saved."""
    for path in list_checkpoints(Path(folder)):
        path.unlink(missing_ok=True)


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a state atomically.

    Raises:
        TypeError: Something in it is neither a tensor nor JSON; the message says what and where.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "step-00000001.safetensors")
    ...     write_checkpoint(path, {"state": {0: (torch.ones(2), 1.5)}, "name": "run"})
    ...     read_checkpoint(path)
    {'state': {0: (tensor([1., 1.]), 1.5)}, 'name': 'run'}
    """
    tensors: dict[str, Tensor] = {}
    content = encode(dict(state), "", tensors)
    metadata = {"format": FORMAT, "content": json.dumps(content), "crc32": checksum(tensors)}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint, with its tensors on the CPU.

    Raises:
        InputError: There is no such file, or it is damaged or not one of ours.
    """
    header = read_header(path)
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise InputError(f"this checkpoint cannot be read: {one_line(error)}", path=path) from error
    if checksum(tensors) != header["crc32"]:
        raise InputError(
            "this checkpoint is damaged (its checksum is wrong); delete it to use the one before", path=path
        )
    try:
        return decode(json.loads(header["content"]), tensors)
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"this checkpoint is damaged ({one_line(error)})", path=path) from error


def read_header(path: str | Path) -> dict[str, str]:
    """The metadata of a checkpoint, checked to be one.

    Raises:
        InputError: There is no such file, or it is damaged or not one of ours.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
    except FileNotFoundError as error:
        raise InputError("there is no such checkpoint", path=path) from error
    except (SafetensorError, OSError) as error:
        raise InputError(f"this is no checkpoint or a damaged one ({one_line(error)})", path=path) from error
    if metadata.get("format") != FORMAT or not {"content", "crc32"} <= metadata.keys():
        raise InputError("this file holds tensors but is no checkpoint of a training run", path=path)
    return metadata


def weight_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's weights in a checkpoint, without reading them."""
    content = json.loads(read_header(path)["content"])
    with safe_open(path, "pt") as file:
        weights = content.get("state_dict", {})
        return {name: tuple(file.get_slice(value["key"]).get_shape()) for name, value in weights.items()}


def encode(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON, its tensors moved into `tensors` under the place where they were."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return {MARK: "tensor", "key": keep_tensor(value, place, tensors)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return {MARK: "array", "key": keep_tensor(torch.from_numpy(np.ascontiguousarray(value)), place, tensors)}
    if isinstance(value, list | tuple):
        items = [encode(item, f"{place}.{index}", tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {MARK: "tuple", "items": items}
    if isinstance(value, dict):
        pairs = [(key, encode(item, f"{place}.{key}".lstrip("."), tensors)) for key, item in value.items()]
        kind = "counter" if isinstance(value, Counter) else "dict"
        if kind == "dict" and MARK not in value and all(isinstance(key, str) for key in value):
            return dict(pairs)
        return {MARK: kind, "items": [[encode(key, f"{place}: key", tensors), item] for key, item in pairs]}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(
        f"{place} is a {kind}: a checkpoint holds tensors, numbers, text, lists, tuples and dicts of these only"
    )


def keep_tensor(value: Tensor, place: str, tensors: dict[str, Tensor]) -> str:
    """Stores a tensor under a free name and returns the name."""
    if value.dtype not in FLOATS + INTEGERS or value.layout != torch.strided:
        raise TypeError(
            f"{place} is a {value.layout} tensor of {value.dtype}: a checkpoint holds dense real tensors only"
        )
    key = place
    while key in tensors:  # {"a.b": ..., "a": {"b": ...}}
        key += "'"
    saved = value.detach().to("cpu").contiguous()
    storage = saved.untyped_storage()
    # tied weights and views are saved each by itself: safetensors takes no two tensors that share memory
    if any(storage.data_ptr() == other.untyped_storage().data_ptr() for other in tensors.values()):
        saved = saved.clone()
    tensors[key] = saved
    return key


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get(MARK):
        case None:
            return {key: decode(item, tensors) for key, item in value.items()}
        case "tensor":
            return tensors[value["key"]]
        case "array":
            return tensors[value["key"]].numpy()
        case "tuple":
            return tuple(decode(item, tensors) for item in value["items"])
        case "dict":
            return {decode(key, tensors): decode(item, tensors) for key, item in value["items"]}
        case "counter":
            return Counter({decode(key, tensors): decode(item, tensors) for key, item in value["items"]})
        case kind:
            raise ValueError(f"unknown kind of value {kind!r}")


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 over the tensors' bytes, in the order of their names."""
    crc = 0
    for _, tensor in sorted(tensors.items()):
        if tensor.numel():
            crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def one_line(error: BaseException) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__
