"""The run-time type checker of the tests: an int is accepted where a float is promised, as everywhere in Python."""

import contextlib
from collections.abc import Iterator

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


@contextlib.contextmanager
def unchecked_annotations() -> Iterator[None]:
    """The library as its users run it: for tests of its own messages about wrong arguments."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
