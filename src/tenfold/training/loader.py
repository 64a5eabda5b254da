"""A data loader whose batches are a pure function of (seed, epoch, batch number), so that training resumes in
mid-epoch exactly.

The order of epoch e is one ``torch.randperm`` from a generator seeded by (seed, e). To resume at batch n of epoch e,
the order is drawn again and the first n batches are passed over without being read. Nothing is drawn from the global
generators, neither for the order nor in the data set: while items are read (augmentation!) these are seeded by (seed,
epoch, batch, process) and put back afterwards. The same batches come from any number of worker processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from tenfold.errors import InputError
from tenfold.training.seeds import derived_seed, seeded, seeded_generator


class SeededLoader:
    """Batches of a data set or of tensors, in an order that depends on the seed and the epoch alone.

    Each pass over it is one epoch and the next pass the next epoch. `state_dict` and `load_state_dict` say and set the
    place; Lightning calls them itself. Under distributed training each process gets its share of every epoch, of equal
    length (the last few items are given twice where the number of processes does not divide their number), as torch's
    ``DistributedSampler`` does.

    Args:
        data: A tensor or a tuple of tensors with the same first dimension (sliced batch-wise, the fastest way), a
            ``TensorDataset``, or any map-style data set.
        batch_size: Items a batch, in each process.
        seed: Of the order, and of random augmentation in the data set.
        shuffle: Whether each epoch has an order of its own; otherwise the order is that of the data.
        drop_last: Whether a last, smaller batch is left out.
        num_workers: Processes that read items; 0 reads them here.
        collate: Makes a batch of a list of items; torch's ``default_collate`` unless given. Data sets only.
        pin_memory: Passed on to the ``DataLoader`` that runs the workers.

    Raises:
        ValueError: `batch_size` is not positive, tensors have different lengths, there is nothing in the data,
            or not a single whole batch where `drop_last` asks for whole ones.

    >>> loader = SeededLoader((torch.arange(5), torch.arange(5) ** 2), batch_size=2, seed=0)
    >>> len(loader), [x.tolist() for x, y in loader] == [x.tolist() for x, y in loader]  # the second pass is epoch 1
    (3, False)
    >>> loader.load_state_dict({**loader.state_dict(), "epoch": 1, "batch": 2})
    >>> [len(x) for x, y in loader]  # what is left of epoch 1
    [1]
    """

    batch_sampler: None = None  # Lightning asks for it where there is a sampler

    def __init__(
        self,
        data: Tensor | Sequence[Tensor] | Dataset,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        num_workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
    ) -> None:
        if isinstance(data, TensorDataset) and collate is None:
            data = data.tensors
        lengths = [len(column) for column in data] if isinstance(data, tuple | list) else [len(data)]  # type: ignore[arg-type]
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise ValueError(f"data must be of one length and not empty; the lengths are {lengths}")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        if drop_last and batch_size > lengths[0]:
            raise ValueError(f"batch_size={batch_size} with drop_last leaves no batch of {lengths[0]} items")
        if isinstance(data, Tensor | tuple | list) and (collate is not None or num_workers):
            raise ValueError("collate and num_workers are for data sets; tensors are sliced in this process")
        self.data: Any = data
        self.size = lengths[0]
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.collate = collate
        self.pin_memory = pin_memory
        self.epoch = 0
        self._done = 0  # batches of this epoch that were given out
        self._skip = 0  # batches that the next pass leaves out, after load_state_dict

    @property
    def sampler(self) -> SeededLoader:
        """Itself: Lightning calls ``loader.sampler.set_epoch``."""
        return self

    def __len__(self) -> int:
        items = -(-self.size // process()[1])
        return max(1, items // self.batch_size) if self.drop_last else -(-items // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch; the place within the epoch is kept if it is the present one."""
        if epoch != self.epoch:
            self.epoch, self._done, self._skip = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """The place (epoch, and batches of it given out) and what it depends on."""
        return {"epoch": self.epoch, "batch": self._done, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a place that `state_dict` reported.

        Raises:
            InputError: The state is of other data, another batch size, seed or number of processes: the batches left
                would not be these.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(
                    f"the checkpoint was made with {name}={state.get(name)!r} in the data loader, "
                    f"now {name}={value!r}: training can only be resumed on the same data in the same batches"
                )
        self.epoch = state["epoch"]
        self._done = self._skip = state["batch"]

    def __iter__(self) -> Iterator[Any]:
        # a generator: nothing happens before the first batch is asked for, so set_epoch may be called after iter()
        first, self._skip = self._skip, 0
        epoch, (rank, _) = self.epoch, process()
        batches = list(enumerate(self._order(epoch).split(self.batch_size)))[first : len(self)]
        self._done = first
        for batch in self._read([(derived_seed(self.seed, epoch, number, rank), rows) for number, rows in batches]):
            self._done += 1
            yield batch
        self.epoch, self._done = epoch + 1, 0

    def _order(self, epoch: int) -> Tensor:
        """Indices of the items that this process gets in an epoch."""
        rank, processes = process()
        order = (
            torch.randperm(self.size, generator=seeded_generator(self.seed, epoch))
            if self.shuffle
            else torch.arange(self.size)
        )
        each = -(-self.size // processes)
        return order.repeat(-(-each * processes // self.size))[: each * processes][rank::processes]

    def _read(self, batches: list[tuple[int, Tensor]]) -> Iterator[Any]:
        if isinstance(self.data, Tensor):
            return (self.data[rows] for _, rows in batches)
        if isinstance(self.data, tuple | list):
            return (tuple(column[rows] for column in self.data) for _, rows in batches)
        reader = BatchReader(self.data, self.collate or default_collate)
        if self.num_workers == 0 and not self.pin_memory:
            return (reader[batch] for batch in batches)
        return iter(
            DataLoader(
                reader,
                batch_size=None,
                sampler=batches,
                num_workers=self.num_workers,
                collate_fn=unchanged,
                pin_memory=self.pin_memory,
                generator=torch.Generator(),  # else a seed for the workers is drawn from the global generator
            )
        )

    def _identity(self) -> dict[str, Any]:
        names = ("size", "batch_size", "seed", "shuffle", "drop_last")
        return {**{name: getattr(self, name) for name in names}, "processes": process()[1]}


class BatchReader(Dataset):
    """Reads one whole batch, told by its seed and its rows, with the global generators seeded for it."""

    def __init__(self, data: Any, collate: Callable[[list[Any]], Any]) -> None:
        self.data = data
        self.collate = collate

    def __getitem__(self, batch: tuple[int, Tensor]) -> Any:
        seed, rows = batch
        with seeded(seed):
            indices = rows.tolist()
            many = getattr(self.data, "__getitems__", None)
            return self.collate(many(indices) if many is not None else [self.data[index] for index in indices])


def unchanged(batch: Any) -> Any:
    """The batch: it was collated when it was read."""
    return batch


def process() -> tuple[int, int]:
    """Number of this process and how many there are, in distributed training; (0, 1) outside."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
