"""Run a function in two processes of a gloo group; its results come back in the order of ranks."""

from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_in_two_processes(function, folder, size=2):
    """What ``function(rank)`` returned (tensors and plain values) in each process."""
    rendezvous = folder / "rendezvous"
    context = mp.spawn(partial(_enter, function, rendezvous, folder, size), nprocs=size, join=False)
    while not context.join(timeout=60):
        pass
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


def _enter(function, rendezvous, folder, size, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    try:
        torch.save(function(rank), folder / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
