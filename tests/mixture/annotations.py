"""Shape annotations, which the tests check at run time, switched off where the library's own messages are the matter."""

import contextlib
from collections.abc import Iterator

import jaxtyping


@contextlib.contextmanager
def unchecked_annotations() -> Iterator[None]:
    """The library as its users run it."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
