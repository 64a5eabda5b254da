"""MovieLens 100K: 100,000 ratings of 1,682 films by 943 people, 1997-1998 (Harper and Konstan 2015).

The package index has it in a form of its own, the publisher as ``u.data`` and ``u.item`` in Latin-1. Both are brought
to the same two files: ``u.data`` as published, and ``items.tsv``, UTF-8, with film, title, year and genres.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32, Int64

from tenfold.datasets.archives import read_member
from tenfold.datasets.cards import Artifact, DataFile, DatasetCard, Source
from tenfold.datasets.fetching import contents

GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


@dataclass(frozen=True)
class Ratings:
    """Ratings, one a row, in the published order, and the films.

    Args:
        user: int32, (100000,), from 0 to 942.
        item: int32, (100000,), from 0 to 1681.
        rating: float32, (100000,), 1 to 5 stars.
        timestamp: int64, (100000,), seconds since 1970, UTC.
        titles: One a film, in the order of `item`; articles stand behind ("Full Monty, The").
        years: Year of release of each film; None for the one that is unknown.
        genres: Zero or more for each film.
    """

    user: Int32[np.ndarray, " ratings"]
    item: Int32[np.ndarray, " ratings"]
    rating: Float32[np.ndarray, " ratings"]
    timestamp: Int64[np.ndarray, " ratings"]
    titles: tuple[str, ...]
    years: tuple[int | None, ...]
    genres: tuple[tuple[str, ...], ...]


def movielens_100k() -> Ratings:
    """MovieLens 100K; fetched at first use (2 MB). For research; redistribution and commercial use need permission.

    Raises:
        DatasetUnavailableError: Not on this machine, and not to be had.
    """
    found = contents(MOVIELENS_100K_CARD)
    rows = np.loadtxt(io.BytesIO(found["u.data"]), dtype=np.int64)
    films = [line.split("\t") for line in found["items.tsv"].decode().splitlines()[1:]]
    return Ratings(
        user=(rows[:, 0] - 1).astype(np.int32),
        item=(rows[:, 1] - 1).astype(np.int32),
        rating=rows[:, 2].astype(np.float32),
        timestamp=rows[:, 3].copy(),
        titles=tuple(title for _, title, _, _ in films),
        years=tuple(int(year) if year else None for _, _, year, _ in films),
        genres=tuple(tuple(genres.split()) for _, _, _, genres in films),
    )


def _items(films: Iterable[tuple[str, str, str, str]]) -> bytes:
    """``items.tsv`` from number, title, year and genres of each film."""
    lines = ["item\ttitle\tyear\tgenres", *("\t".join(film) for film in films)]
    return ("\n".join(lines) + "\n").encode()


def _from_wheel(paths: Sequence[Path]) -> dict[str, bytes]:
    """A header above ``u.data``; films with the last word in brackets as the year, which is wrong for two of them."""
    ratings = read_member(paths[0], "recbole/dataset_example/ml-100k/ml-100k.inter", limit=1_979_230)
    text = read_member(paths[0], "recbole/dataset_example/ml-100k/ml-100k.item", limit=66_632).decode()
    films = []
    for line in text.splitlines()[1:]:
        item, title, year, genres = line.split("\t")
        if year == "V":  # "... (1995) (V)", a video
            title, year = title[: -len(" (1995)")], "1995"
        elif not year.isdigit():
            title, year = "unknown", ""
        films.append((item, title, year, genres))
    return {"u.data": ratings.partition(b"\n")[2], "items.tsv": _items(films)}


def _from_published(ratings: bytes, items: bytes) -> dict[str, bytes]:
    films = []
    for line in items.decode("latin-1").splitlines():
        item, title, _, _, _, *flags = line.split("|")
        match = re.fullmatch(r"(.*?) \((\d{4})\)( \(V\))?", title.strip())
        genres = " ".join(genre for genre, flag in zip(GENRES, flags, strict=True) if flag == "1")
        films.append((item, match[1], match[2], genres) if match else (item, title, "", genres))
    return {"u.data": ratings, "items.tsv": _items(films)}


def _from_zip(paths: Sequence[Path]) -> dict[str, bytes]:
    ratings = read_member(paths[0], "ml-100k/u.data", limit=1_979_173)
    return _from_published(ratings, read_member(paths[0], "ml-100k/u.item", limit=236_344))


def _from_files(paths: Sequence[Path]) -> dict[str, bytes]:
    return _from_published(paths[0].read_bytes(), paths[1].read_bytes())


_U_DATA = "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"

MOVIELENS_100K_CARD = DatasetCard(
    name="movielens-100k",
    title="100,000 ratings of 1,682 films by 943 people",
    licence="GroupLens terms: research; no redistribution or commercial use without permission",
    citation=(
        "F. M. Harper and J. A. Konstan. The MovieLens Datasets: History and Context. "
        "ACM Transactions on Interactive Intelligent Systems 5(4), 2015. https://doi.org/10.1145/2827872"
    ),
    terms=(
        "MovieLens 100K is given by GroupLens (University of Minnesota) for research: acknowledge it in publications "
        "and imply no endorsement; redistribution, and any commercial use, need their permission."
    ),
    files=(
        DataFile("u.data", _U_DATA, 1_979_173),
        DataFile("items.tsv", "21dc5886fe723ebb8fdbc1da4faec0767756c415f137411dd017472f09054f7d", 66_573),
    ),
    sources=(
        Source(
            "package index",
            (
                Artifact(
                    "recbole-1.2.1-py3-none-any.whl",
                    "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
                    2_130_151,
                    requirement="recbole==1.2.1",
                ),
            ),
            _from_wheel,
        ),
        Source(
            "publisher",
            (
                Artifact(
                    "ml-100k.zip",
                    "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
                    4_924_029,
                    url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
                ),
            ),
            _from_zip,
        ),
        Source(
            "published files, unpacked",
            (
                Artifact("u.data", _U_DATA, 1_979_173),
                Artifact("u.item", "553841ebc7de3a0fd0d6b62a204ea30c1e651aacfb2814c7a6584ac52f2c5701", 236_344),
            ),
            _from_files,
        ),
    ),
)
