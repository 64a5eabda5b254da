"""The allocator is tuned only when asked for, says what it did, and then large tensors cost no page faults."""

import json
import os
import subprocess
import sys

import pytest

from tenfold.runtime import allocator_state, tune_allocator
from tenfold.runtime.allocator import _glibc

CALL = """
import json, resource, sys
import torch
from tenfold.runtime import allocator_state, tune_allocator

tuning = tune_allocator() if sys.argv[1] == "tuned" else None
values = torch.zeros(12 * 2**20)  # 48 MiB, above glibc's highest threshold of its own
for _ in range(20):
    values.clone()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    values.clone()
faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10
print(json.dumps([tuning and [tuning.tuned, tuning.reason], faults, allocator_state()]))
"""
only_glibc = pytest.mark.skipif(_glibc() is None, reason="this system's C library is not glibc")


def call(mode: str, **environment: str) -> list:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "MALLOC_", "LD_PRELOAD"))
    }
    command = [sys.executable, "-c", CALL, mode]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@only_glibc
def test_a_large_fresh_tensor_costs_no_page_faults_once_tuned():
    nothing, faults_before, state_before = call("untuned")
    (tuned, reason), faults_after, state_after = call("tuned")
    assert nothing is None
    assert tuned
    assert "not tuned" in state_before
    assert state_after == reason
    assert faults_after < 0.1 * faults_before


@only_glibc
@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576", "GLIBC_TUNABLES sets glibc.malloc.mmap_threshold"),
        ("MALLOC_TRIM_THRESHOLD_", "1048576", "the environment sets MALLOC_TRIM_THRESHOLD_ already"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2", "the allocator jemalloc is loaded in place of glibc's"),
    ],
)
def test_what_the_user_has_settled_is_left_alone(monkeypatch, variable, value, reason):
    monkeypatch.setenv(variable, value)
    tuning = tune_allocator()
    assert not tuning.tuned
    assert reason in tuning.reason
    assert allocator_state() == tuning.reason


def test_another_c_library_is_named_as_the_reason(monkeypatch):
    monkeypatch.setattr(os, "confstr_names", {}, raising=False)  # as on Windows, macOS and musl
    tuning = tune_allocator()
    assert not tuning.tuned
    assert "not glibc" in tuning.reason


@pytest.mark.parametrize("wrong", [0, 2**31])
def test_thresholds_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=f"trim_threshold={wrong} bytes must lie between"):
        tune_allocator(trim_threshold=wrong)
