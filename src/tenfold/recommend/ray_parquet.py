"""Events that no machine has to hold: the nodes of a Ray cluster read a Parquet file by blocks and deal the entries out.

1. *Read.* Tasks read stretches of ``EVENTS`` rows of the file (or of the files of a folder), which every node must see under the
   same path. A stretch stays where it was read; only its ids, and how often each occurs, come to the driver.
2. *Deal.* The driver has the sorted ids of all, and cuts users and items into blocks of about equal cost. Each stretch is divided
   by the block of the user, and once more by that of the item.
3. *Gather.* A task for each block takes its pieces in the order of the file, sums repeated events, and makes the rows that
   `tenfold.recommend.ray_engine` solves. The pieces are then let go.

With E events, V stretches of them, R users, F items, k factors of b bytes, B blocks a side and N nodes

=====================  ============================================================================================
moved once             12 E bytes for each side (two indices of 4 bytes and a value), and ids to the driver
memory of a node       while reading 12 EVENTS bytes for each worker and what polars needs to decode them; then
                       (4 + b) 2 E / N bytes of blocks, at most 12 E / N more of pieces, and what a half step needs
memory of the driver   ids, (R + F) k b for the factors, 8 (R + F) for lengths; no events
moved per iteration    that of both half steps (`ray_engine`), and R k b for the loss, which is summed on the nodes
=====================  ============================================================================================

Blocks grow with E / N, so that more nodes hold more events; factors do not: every node needs the fixed side whole. What is lost
with a node is made again by Ray from the tasks that made it, back to the file.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Float, Int, Shaped

from tenfold.errors import InputError
from tenfold.files.limits import require_file
from tenfold.recommend.als import ImplicitALS
from tenfold.recommend.data import PARQUET, find_columns, frame_events
from tenfold.recommend.events import Events, summed
from tenfold.recommend.identifiers import index_type
from tenfold.recommend.kernels import cost_sums
from tenfold.recommend.objective import Objective, Side
from tenfold.recommend.ray_engine import block_count, joined, results, shared
from tenfold.recommend.spread_rows import SpreadRows
from tenfold.runtime.rows import block_edges

EVENTS = 1 << 22  # rows of the file that a task reads


class Prepared(NamedTuple):
    """Rows on the nodes, and the ids that the driver keeps.

    Args:
        users: Rows of users.
        items: Rows of items.
        user_ids: Ascending, (users,).
        item_ids: Ascending, (items,).
    """

    users: Side
    items: Side
    user_ids: Shaped[np.ndarray, " users"]
    item_ids: Shaped[np.ndarray, " items"]


def spread_parquet(
    path: str | os.PathLike[str],
    objective: Objective,
    *,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    blocks: int | None = None,
    events: int = EVENTS,
) -> Prepared:
    """Rows of users and items from a Parquet file or a folder of them, read and kept by the nodes of a Ray cluster.

    Args:
        path: Seen by every node.
        objective: Makes confidences of counts.
        user: Column of user ids; found among usual names if None, as are the others.
        item: Column of item ids.
        value: Column of values; every event counts 1 where there is none.
        blocks: Of each side; four for each CPU of the cluster if None.
        events: Rows of the file that a task reads.

    Raises:
        InputError: There is no such file, it is damaged, or holds what cannot be used; file and row are named.
        MissingExtraError: Ray is not installed.
    """
    ray = joined()
    asked = {"user": user, "item": item, "value": value, "timestamp": None}
    stretches = _stretches(Path(path), asked, events)
    read = ray.remote(num_returns=2)(read_stretch)
    heads, held = zip(*(read.remote(*stretch) for stretch in stretches), strict=True)
    found = results(ray, list(heads))
    tables, places, counts = zip(*(_merged([head[side] for head in found]) for side in range(2)), strict=True)
    number = block_count(ray, blocks)
    edges = [block_edges(count + 10.0, float((count + 10.0).sum()) / number) for count in counts]
    deal = ray.remote(num_returns=sum(len(side) - 1 for side in edges))(deal_out)
    dealt = []
    for stretch, ref in enumerate(held):
        dealt.append(deal.remote(ref, places[0][stretch], places[1][stretch], *edges))
    shape = (len(tables[0]), len(tables[1]))
    sides, first_piece = [], 0
    for side in range(2):
        gather = ray.remote(num_returns=2)(gather_block)
        parts, facts = [], []
        for block, (first, last) in enumerate(pairwise(edges[side])):
            pieces = [one[first_piece + block] for one in dealt]
            part, fact = gather.remote(int(first), int(last), shape[1 - side], objective, *pieces)
            parts.append(part)
            facts.append(fact)
        first_piece += len(edges[side]) - 1
        known = results(ray, facts)
        lengths = np.concatenate([one[0] for one in known])
        checksum = zlib.crc32(np.array([one[1] for one in known]).data)
        rows = SpreadRows(edges[side], parts, lengths, checksum, loss_sums)
        sides.append(Side(rows, objective.lambdas(lengths, shape[1 - side])))
    if not sides[0].rows.lengths.any():
        raise InputError("no user and item have values that sum to anything but zero", path=path)
    return Prepared(sides[0], sides[1], tables[0], tables[1])


def fit_parquet(
    model: ImplicitALS, path: str | os.PathLike[str], *, columns: Mapping[str, Any] | None = None, **options: Any
) -> int:
    """Fits a model to a Parquet file on a Ray cluster.

    Args:
        model: Takes the factors; its ``user_ids_`` and ``item_ids_`` become the ids of the file.
        path: As in `spread_parquet`.
        columns: Names of the columns ``user``, ``item`` and ``value``, as there.
        options: ``callback``, ``checkpoint``, ``resume``, ``item_factors``, as in `ImplicitALS.fit`.

    Returns:
        The number of entries.
    """
    model.check_parameters()
    prepared = spread_parquet(path, model.objective(), **(columns or {}))
    model.fit_sides(prepared.users, prepared.items, engine="ray", **options)
    model.user_ids_, model.item_ids_ = prepared.user_ids, prepared.item_ids
    return int(prepared.users.rows.lengths.sum())


def _stretches(path: Path, asked: dict[str, str | None], events: int) -> list[tuple[str, dict[str, Any], int, int]]:
    """What each task reads: file, columns, first row, rows."""
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in PARQUET) if path.is_dir() else [require_file(path)]
    if not files:
        raise InputError("this folder holds no .parquet file", path=path)
    stretches = []
    for file in files:
        try:
            frame = pl.scan_parquet(file, glob=False)
            roles = find_columns(frame.collect_schema().names(), asked, file)
            height = int(frame.select(pl.len()).collect().item())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            raise InputError(f"this Parquet file is damaged ({str(error).splitlines()[0][:200]})", path=file) from error
        roles.pop("timestamp", None)
        for first in range(0, height, events):
            stretches.append((str(file.resolve()), dict.fromkeys(asked) | roles, first, min(events, height - first)))
    if not stretches:
        raise InputError("there are columns, but no rows", path=path)
    return stretches


def read_stretch(path: str, asked: dict[str, str | None], first: int, count: int) -> tuple[Any, Events]:
    """What a worker does first: ids of users and items of a stretch, each with the number of its events; and the events."""
    file = Path(path)
    try:
        frame = pl.scan_parquet(file, glob=False).slice(first, count)
        events, user_ids, item_ids = frame_events(frame, asked, file, first)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise InputError(f"this Parquet file is damaged ({str(error).splitlines()[0][:200]})", path=file) from error
    heads = ((user_ids, np.bincount(events.users)), (item_ids, np.bincount(events.items)))
    return heads, events._replace(timestamps=None)


def deal_out(
    events: Events,
    user_places: Int[np.ndarray, " users"],
    item_places: Int[np.ndarray, " items"],
    user_edges: Int[np.ndarray, " user_edges"],
    item_edges: Int[np.ndarray, " item_edges"],
) -> list[Any]:
    """What a worker does next: the events of a stretch by blocks of users, then by blocks of items, in the order of the file."""
    index = index_type(int(max(user_edges[-1], item_edges[-1])))
    users, items = user_places[events.users].astype(index), item_places[events.items].astype(index)
    pieces = []
    for rows, columns, edges in ((users, items, user_edges), (items, users, item_edges)):
        block = np.searchsorted(edges, rows, side="right") - 1
        order = np.argsort(block, kind="stable")
        starts = np.searchsorted(block[order], np.arange(len(edges)))
        for begin, end in pairwise(starts):
            chosen = order[begin:end]
            pieces.append((rows[chosen], columns[chosen], events.values[chosen]))
    return pieces


def gather_block(first: int, last: int, columns: int, objective: Objective, *pieces: Any) -> tuple[Any, Any]:
    """What a worker does last: the rows of a block, ready to be solved; and their lengths and checksum."""
    rows, others, values = (np.concatenate(column) for column in zip(*pieces, strict=True))
    matrix = summed(Events(rows - first, others, values, None), (last - first, columns))
    found = objective.rows(matrix)
    checksum = 0
    for array in (found.indptr, found.indices.astype(np.int64), found.values):
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    part = (found.indptr, found.indices, found.values, found.base, found.slope, found.offset)
    return part, (found.lengths, checksum)


def loss_sums(
    rows: SpreadRows, users: Float[np.ndarray, "rows k"], items: Float[np.ndarray, "items k"]
) -> list[tuple[float, float]]:
    """Sums over the entries of each block, made where the block is."""
    ray = joined()
    fixed = shared(ray, items)
    task = ray.remote(num_cpus=1)(block_sums)
    blocks = zip(rows.parts, pairwise(rows.edges), strict=True)
    return results(ray, [task.remote(part, users[first:last], fixed) for part, (first, last) in blocks])


def block_sums(part: Any, users: np.ndarray, items: np.ndarray) -> tuple[float, float]:
    """``sum c (p - s)^2`` and ``sum s^2`` over the entries of a block."""
    indptr, indices, values, base, slope, offset = (
        array.copy() if isinstance(array, np.ndarray) else array for array in part
    )
    scale = (slope, offset, base)
    return cost_sums.loss_rows(0, len(indptr) - 1, indptr, indices, values, scale, users.copy(), items.copy())


def _merged(heads: list[Any]) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """All ids, ascending; where each stretch's own are among them; and the number of events of each."""
    tables = [ids for ids, _ in heads]
    if (
        len({ids.dtype.kind for ids in tables}) > 1
    ):  # text that a stretch took for integers, as they were all plain ones
        tables = [ids.astype(np.str_) for ids in tables]
    merged = np.unique(np.concatenate(tables))
    places = [np.searchsorted(merged, ids) for ids in tables]
    counts = np.zeros(len(merged), np.int64)
    for place, (_, count) in zip(places, heads, strict=True):
        counts[place] += count
    return merged, places, counts
