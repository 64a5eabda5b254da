"""The machine code of a loop around each scalar function works on whole vectors and calls nothing."""

import platform
import re

import llvmlite.binding as llvm
import numpy as np
import pytest

NAMES = (
    "exp",
    "expm1_",
    "log",
    "log1p_",
    "tanh",
    "sigmoid",
    "softplus",
    "erfcx",
    "mills",
    "gaussian",
    "ndtr",
    "log_ndtr",
)
X86 = {"x86_64", "AMD64"}
ARM = {"aarch64", "arm64"}


def widest_vector_arithmetic() -> str:
    """A pattern of multiplications on whole vectors, in the widest registers that LLVM uses by default here."""
    if platform.machine() in X86:
        registers = r"%[yz]mm" if llvm.get_host_cpu_features().get("avx2") else r"%xmm"
        return rf"v?(?:mul|fn?madd\d*|fn?msub\d*)p[sd]\s[^\n]*{registers}"
    if platform.machine() in ARM:
        return r"f(?:mul|mla|mls)\s+v\d+\.(?:4s|2d)|f(?:mul|mla|mls)\.(?:4s|2d)"
    return ""


@pytest.mark.parametrize("bits", ["32", "64"])
@pytest.mark.parametrize("name", NAMES)
def test_a_loop_around_it_is_vector_code(compiled_loop, name, bits):
    pattern = widest_vector_arithmetic()
    if not pattern:
        pytest.skip(f"no pattern of vector instructions is known for {platform.machine()}")
    loop = compiled_loop(name, bits)
    (code,) = loop.inspect_asm().values()
    body = code[: code.index("cpython")] if "cpython" in code else code
    assert len(re.findall(pattern, body)) >= 5, f"no vector arithmetic around {name}{bits}"
    assert not re.search(r"call\w*\s+\**[%\w]*(?:exp|log|erf|tanh|fma)f?\b", body), "the loop calls the scalar library"
    values = np.full(37, 0.5, {"32": np.float32, "64": np.float64}[bits])  # not a multiple of any vector's length
    results = np.zeros_like(values)
    loop(values, results)
    assert np.ptp(results) <= 2 * np.finfo(values.dtype).eps
    assert results[0] != 0
