"""What a payoff may write: the vocabulary less the excluded ids; and references as a batch of rows with lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tenfold.raml import kernels
from tenfold.raml.temperature import check_vocab_size


class Alphabet:
    """The tokens that a sampler may write, and the ids that it must leave alone.

    Args:
        vocab_size: Ids are 0, ..., vocab_size - 1.
        exclude_ids: Ids that never appear anew and never change (padding, begin, end, unknown). Ids outside of the
            vocabulary, such as the label -100, may be named too: they are kept where they stand.

    Attributes:
        size: V, the number of tokens that may be written.
        exclude_ids: The excluded ids, sorted, each once.
        ids: (V,) the tokens, ascending; rank: (vocab_size,) their positions in ``ids``, -1 for excluded ids. Both are
            empty where nothing of the vocabulary is excluded.

    Raises:
        ValueError: Fewer than 2 tokens are left.

    >>> Alphabet(5, exclude_ids=(0, 3)).ids.tolist()
    [1, 2, 4]
    """

    def __init__(self, vocab_size: int, exclude_ids: Iterable[int] = ()) -> None:
        check_vocab_size(vocab_size)
        self.vocab_size = int(vocab_size)
        self.exclude_ids = tuple(sorted({int(token) for token in exclude_ids}))
        inside = [token for token in self.exclude_ids if 0 <= token < self.vocab_size]
        self.size = self.vocab_size - len(inside)
        if self.size < 2:
            raise ValueError(
                f"exclude_ids leaves {self.size} of vocab_size={vocab_size} tokens: at least 2 must be there to choose from"
            )
        kept = np.ones(self.vocab_size, bool)
        kept[inside] = False
        self.ids = np.flatnonzero(kept).astype(np.int32) if inside else np.empty(0, np.int32)
        self.rank = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32) if inside else np.empty(0, np.int32)

    def first_illegal(
        self, ids: Int[np.ndarray, "batch length"], lengths: Int[np.ndarray, " batch"]
    ) -> tuple[int, int] | None:
        """Row and position of the first id that is neither in the vocabulary nor excluded."""
        row = kernels.row_outside(ids, lengths, self.vocab_size)
        while row < len(ids):
            tokens = ids[row, : lengths[row]]
            outside = (tokens < 0) | (tokens >= self.vocab_size)
            illegal = np.flatnonzero(outside & ~np.isin(tokens, self.exclude_ids))
            if illegal.size:
                return int(row), int(illegal[0])
            row += 1 + int(kernels.row_outside(ids[row + 1 :], lengths[row + 1 :], self.vocab_size))
        return None

    def is_free(self, ids: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        """Which ids may change: those of the vocabulary that are not excluded."""
        inside = (ids >= 0) & (ids < self.vocab_size)
        if self.rank.size == 0:
            return inside
        rank = torch.from_numpy(self.rank).to(ids.device)
        return inside & (rank[ids.clamp(0, self.vocab_size - 1).long()] >= 0)


def batched(
    ids: Int[Tensor, "*batch length"] | Sequence[int],
    lengths: Int[Tensor, " batch"] | None,
    alphabet: Alphabet,
    name: str = "y",
) -> tuple[Int[Tensor, "rows length"], Int[Tensor, " rows"]]:
    """References as rows with lengths, checked: a single sequence is one row; no lengths means that all rows are full.

    Raises:
        ValueError: Lengths that do not fit the rows, or an id that is neither in the vocabulary nor excluded.
        TypeError: Ids that are not integers.
    """
    ids = torch.as_tensor(ids, dtype=torch.int64) if not isinstance(ids, Tensor) else ids
    if ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
        raise TypeError(f"{name} must hold integer ids, not {ids.dtype}")
    if ids.dim() not in (1, 2):
        raise ValueError(f"{name} has shape {tuple(ids.shape)}, but must be (length,) or (batch, length)")
    rows = ids if ids.dim() == 2 else ids[None]
    if lengths is None:
        lengths = torch.full((rows.shape[0],), rows.shape[1], dtype=torch.int64, device=rows.device)
    elif lengths.shape != rows.shape[:1]:
        raise ValueError(f"lengths has shape {tuple(lengths.shape)}, but {name} has {rows.shape[0]} rows")
    lengths = lengths.to(torch.int64)
    if lengths.numel() and not (int(lengths.min()) >= 0 and int(lengths.max()) <= rows.shape[1]):
        raise ValueError(f"lengths must lie in 0..{rows.shape[1]}, the width of {name}")
    plain, counts = as_arrays(rows, lengths)
    place = alphabet.first_illegal(plain, counts)
    if place is not None:
        row, position = place
        raise ValueError(
            f"{name}[{row}, {position}]={plain[row, position]} is not in 0..{alphabet.vocab_size - 1} and not among exclude_ids"
        )
    return rows, lengths


def as_arrays(
    rows: Int[Tensor, "rows length"], lengths: Int[Tensor, " rows"]
) -> tuple[Int[np.ndarray, "rows length"], Int[np.ndarray, " rows"]]:
    """Both as contiguous int64 arrays on the CPU, without a copy where they are that already."""
    plain = rows.detach().to("cpu", torch.int64).contiguous().numpy()
    return plain, lengths.detach().to("cpu", torch.int64).contiguous().numpy()


def row_seeds(
    rows: int, generator: torch.Generator | None, seeds: Tensor | np.ndarray | Sequence[int] | None
) -> np.ndarray:
    """(rows,) uint64: one random stream for each row; from ``seeds``, or one draw of the generator spread over rows.

    Raises:
        ValueError: Seeds and a generator, or as many seeds as there are not rows.
    """
    if seeds is None:
        device = torch.device("cpu") if generator is None else generator.device
        low, high = torch.randint(0, 2**32, (2,), generator=generator, device=device).tolist()
        return kernels.spread_seed(np.uint64(low | high << 32), rows)
    if generator is not None:
        raise ValueError("give seeds or generator, not both")
    if isinstance(seeds, Tensor):
        seeds = seeds.detach().cpu().numpy()
    values = np.asarray(seeds)
    if values.shape != (rows,) or values.dtype.kind not in "iu":
        raise ValueError(f"seeds must be {rows} integers, one for each row, not {values.dtype} of shape {values.shape}")
    return np.ascontiguousarray(values).astype(np.uint64, copy=False)
