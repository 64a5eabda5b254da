"""Data sets of the literature that users bring themselves, in ``$TENFOLD_DATA``, and the claims about them.

None may be passed on, and the large ones are not fetched: they are read where they lie, as their publishers wrote them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from scipy import sparse

from tenfold.claims import Claim, Criterion, Measurement
from tenfold.datasets import DatasetUnavailableError
from tenfold.datasets.fetching import places
from tenfold.recommend.als import ImplicitALS
from tenfold.recommend.data import frame_interactions
from tenfold.recommend.evaluation import Trial, judge
from tenfold.recommend.interactions import Interactions
from tenfold.recommend.splits import strong_generalization

RENDLE = "Rendle, Krichene, Zhang and Koren 2022, Revisiting the Performance of iALS on Item Recommendation Benchmarks"
SETTINGS: dict[str, dict[str, Any]] = {
    "ml-20m": {"factors": 2048, "regularization": 0.003, "unobserved_weight": 0.1},
    "msd": {"factors": 8192, "regularization": 0.002, "unobserved_weight": 0.02},
}
FILES = {"ml-20m": ("ratings.csv",), "msd": ("train_triplets.txt",)}
HELD_OUT = {"ml-20m": 10_000, "msd": 50_000}


def local_file(folder: str, names: tuple[str, ...]) -> Path | None:
    """The first of these files that lies in ``$TENFOLD_DATA/<folder>/``, in the cache's, or for odd names beside them."""
    for place in places():
        for name in names:
            if (place / folder / name).is_file():
                return place / folder / name
    return None


def lastfm() -> Interactions | None:
    """Last.fm plays of 1,892 listeners (HetRec 2011), if ``lastfm/user_artists.dat`` or the packed table is there."""
    path = local_file("lastfm", ("user_artists.dat",)) or local_file(
        "recommend", ("lastfm_hetrec_user_artists.tsv.gz",)
    )
    if path is None:
        return None
    frame = pl.read_csv(path, separator="\t")
    user, item, value = frame.columns[:3]
    return frame_interactions(frame, user=user, item=item, value=value)


def msweb() -> Interactions | None:
    """Visits of 32,710 users to 285 areas of a web site, if ``msweb/msweb_binary.npz`` (scipy's CSR) is there."""
    path = local_file("msweb", ("msweb_binary.npz",)) or local_file("recommend", ("msweb_binary.npz",))
    return None if path is None else Interactions.from_matrix(sparse.load_npz(path)).minimum_counts(user=2)


def strong_set(name: str) -> Interactions:
    """MovieLens 20M (ratings of 4 and more as likes, users with 5 or more), or the Million Song Dataset's taste profiles
    (users with 20 songs or more, songs with 200 users or more), as Liang et al. 2018 prepared them.

    Raises:
        DatasetUnavailableError: The file is not here.
    """
    path = local_file(name, FILES[name])
    if path is None:
        raise DatasetUnavailableError(
            f"the data set {name} is not here; put its file {FILES[name][0]} into $TENFOLD_DATA/{name}/"
        )
    if name == "ml-20m":
        data = Interactions.from_csv(path, user="userId", item="movieId", value="rating")
        undated = Interactions.from_matrix(data.matrix, data.user_ids, data.item_ids)
        return undated.binarize(4).minimum_counts(user=5)
    frame = pl.scan_csv(path, separator="\t", has_header=False, new_columns=["user", "song", "plays"])
    return (
        frame_interactions(frame, user="user", item="song", value="plays").binarize().minimum_counts(user=20, item=200)
    )


def published_recall(name: str, seed: int) -> dict[str, float]:
    """Recall@20, Recall@50 and NDCG@100 of held-out users with the published settings."""
    held_out = HELD_OUT[name]
    outer = strong_generalization(strong_set(name).matrix, held_out, random_state=seed)
    train = strong_generalization(outer.train, held_out, random_state=seed + 1000).train  # the rest was for validation
    model = ImplicitALS(
        **SETTINGS[name],
        target="rendle",
        confidence="raw",
        frequency_exponent=1.0,
        iterations=16,
        random_state=seed,
    ).fit(train)
    found = judge(model, Trial(train, outer.fold_in, outer.test, new_users=True), k=(20, 50, 100))
    return {metric: found[metric] for metric in ("recall@20", "recall@50", "ndcg@100")}


def published_ml20m(seed: int, scale: str) -> Measurement:
    """MovieLens 20M with the published settings."""
    return Measurement(published_recall("ml-20m", seed))


def published_msd(seed: int, scale: str) -> Measurement:
    """The Million Song Dataset with the published settings."""
    return Measurement(published_recall("msd", seed))


def _published(name: str, title: str, measure: Any, figures: tuple[float, float, float], setting: str) -> Claim:
    return Claim(
        id=f"recommend.published-{name}",
        area="recommend",
        title=title,
        statement="With the published settings the published quality is reached, within 0.005 in each of three metrics.",
        paper=f"{RENDLE}, Table 2",
        published=f"Recall@20 {figures[0]}, Recall@50 {figures[1]}, NDCG@100 {figures[2]}; {setting}.",
        measure=measure,
        criteria=tuple(
            Criterion(number, "at least", figure - 0.005)
            for number, figure in zip(("recall@20", "recall@50", "ndcg@100"), figures, strict=True)
        ),
        descriptions={
            "recall@20": "recall among the first 20 items",
            "recall@50": "recall among the first 50 items",
            "ndcg@100": "normalised discounted cumulative gain of the first 100 items",
        },
        seeds={"full": 1},
        scales=("full",),
        limits="Another draw of the held-out users than the published one. Takes hours and much memory.",
        needs=(name,),
    )


PUBLISHED: tuple[Claim, ...] = (
    _published(
        "ml-20m",
        "MovieLens 20M: the published quality",
        published_ml20m,
        (0.395, 0.532, 0.425),
        "2,048 factors, lambda 0.003, nu 1, unobserved weight 0.1, 16 iterations",
    ),
    _published(
        "msd",
        "Million Song Dataset: the published quality",
        published_msd,
        (0.309, 0.415, 0.368),
        "8,192 factors, lambda 0.002, nu 1, unobserved weight 0.02, 16 iterations",
    ),
)
