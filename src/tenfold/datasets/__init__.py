"""Real data sets for claims and examples: verified, cached, one function each.

Names are looked up when they are used, so that the help of `tenfold datasets` does not cost numpy.
"""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.datasets.cards import Artifact, DataFile, DatasetCard, Source
    from tenfold.datasets.fetching import DatasetUnavailableError, cache_folder, fetch, find
    from tenfold.datasets.handwritten_digits import MNIST, LabelledImages, digits, mnist, mnist_5k
    from tenfold.datasets.movielens import Ratings, movielens_100k
    from tenfold.datasets.pronunciations import PronouncingDictionary, cmudict
    from tenfold.datasets.registry import DATASETS, card

__all__ = [
    "DATASETS",
    "MNIST",
    "Artifact",
    "DataFile",
    "DatasetCard",
    "DatasetUnavailableError",
    "LabelledImages",
    "PronouncingDictionary",
    "Ratings",
    "Source",
    "cache_folder",
    "card",
    "cmudict",
    "digits",
    "fetch",
    "find",
    "mnist",
    "mnist_5k",
    "movielens_100k",
]

_HOMES = {
    "DATASETS": "registry",
    "MNIST": "handwritten_digits",
    "Artifact": "cards",
    "DataFile": "cards",
    "DatasetCard": "cards",
    "DatasetUnavailableError": "fetching",
    "LabelledImages": "handwritten_digits",
    "PronouncingDictionary": "pronunciations",
    "Ratings": "movielens",
    "Source": "cards",
    "cache_folder": "fetching",
    "card": "registry",
    "cmudict": "pronunciations",
    "digits": "handwritten_digits",
    "fetch": "fetching",
    "find": "fetching",
    "mnist": "handwritten_digits",
    "mnist_5k": "handwritten_digits",
    "movielens_100k": "movielens",
}

__getattr__ = lazy_names(__name__, _HOMES)
