"""The machine under the methods: threads, rows in parallel, the C allocator, devices."""

from tenfold.runtime.allocator import AllocatorTuning, allocator_state, tune_allocator
from tenfold.runtime.devices import available_devices, choose_device, default_device
from tenfold.runtime.machine import describe_machine
from tenfold.runtime.rows import parallel_rows
from tenfold.runtime.thread_policy import (
    available_cpus,
    blas_single_thread,
    default_threads,
    set_threads,
    thread_count,
    threads,
)

__all__ = [
    "AllocatorTuning",
    "allocator_state",
    "available_cpus",
    "available_devices",
    "blas_single_thread",
    "choose_device",
    "default_device",
    "default_threads",
    "describe_machine",
    "parallel_rows",
    "set_threads",
    "thread_count",
    "threads",
    "tune_allocator",
]
