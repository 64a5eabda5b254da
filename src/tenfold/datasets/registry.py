"""The list of data sets."""

from __future__ import annotations

from tenfold.datasets.cards import DatasetCard
from tenfold.datasets.handwritten_digits import DIGITS_CARD, MNIST_5K_CARD, MNIST_CARD
from tenfold.datasets.movielens import MOVIELENS_100K_CARD
from tenfold.datasets.pronunciations import CMUDICT_CARD
from tenfold.errors import InputError

DATASETS: tuple[DatasetCard, ...] = (DIGITS_CARD, MNIST_CARD, MNIST_5K_CARD, MOVIELENS_100K_CARD, CMUDICT_CARD)


def card(name: str) -> DatasetCard:
    """The card of a data set.

    Raises:
        InputError: There is no such data set; lists those that there are.

    >>> card("mnist").licence
    'CC BY-SA 3.0'
    """
    for known in DATASETS:
        if known.name == name:
            return known
    raise InputError(f"there is no data set {name!r}; there are {', '.join(known.name for known in DATASETS)}")
