"""Real data sets for claims and examples: verified, cached, one function each."""

from tenfold.datasets.cards import Artifact, DataFile, DatasetCard, Source
from tenfold.datasets.digits import MNIST, LabelledImages, digits, mnist, mnist_5k
from tenfold.datasets.fetching import DatasetUnavailableError, cache_folder, fetch, find
from tenfold.datasets.movielens import Ratings, movielens_100k
from tenfold.datasets.registry import DATASETS, card

__all__ = [
    "DATASETS",
    "MNIST",
    "Artifact",
    "DataFile",
    "DatasetCard",
    "DatasetUnavailableError",
    "LabelledImages",
    "Ratings",
    "Source",
    "cache_folder",
    "card",
    "digits",
    "fetch",
    "find",
    "mnist",
    "mnist_5k",
    "movielens_100k",
]
