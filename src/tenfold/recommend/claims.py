"""The claims of Hu, Koren and Volinsky 2008 and of Rendle et al. 2022 as programs.

The television data of 2008 were never published. What the papers say of the method is measured on MovieLens 100K, at scale
full also on Last.fm and MSWeb where ``$TENFOLD_DATA`` has them. At scale smoke a small synthetic set takes their place,
which tells nothing about the claim. No setting is chosen by looking at the test: lambda, and alpha where it is in
question, are chosen within each seed on a validation part of the training data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from tenfold.claims import Claim, Criterion, Curve, Measurement, Plot
from tenfold.recommend.als import ImplicitALS
from tenfold.recommend.baselines import ItemCosine, Popularity
from tenfold.recommend.evaluation import Trial, judge, make_trial
from tenfold.recommend.interactions import Interactions
from tenfold.recommend.objective import shifted_regularization
from tenfold.recommend.published import PUBLISHED, RENDLE
from tenfold.recommend.splits import hold_out, strong_generalization

HKV = "Hu, Koren and Volinsky 2008, Collaborative Filtering for Implicit Feedback Datasets, ICDM"
LAMBDAS = (3.0, 10.0, 30.0, 100.0, 300.0)


def interactions(seed: int, scale: str) -> Interactions:
    """MovieLens 100K, the stars as r; at scale smoke four groups of users with tastes of their own."""
    if scale != "smoke":
        from tenfold.datasets import movielens_100k

        ratings = movielens_100k()
        return Interactions(ratings.user, ratings.item, ratings.rating)
    rng = np.random.default_rng(seed)
    likes = rng.random((120, 60)) < np.where(np.arange(120)[:, None] % 4 == np.arange(60) % 4, 0.5, 0.1)
    likes[:, :2] = True
    return Interactions.from_matrix(likes * rng.integers(1, 6, likes.shape))


def _iterations(scale: str) -> int:
    return {"smoke": 2, "quick": 10, "full": 20}[scale]


def _trial(data: Interactions, seed: int) -> Trial:
    return make_trial(data, "hold-out", fraction=0.2, random_state=seed)


def _inner(trial: Trial, seed: int) -> Trial:
    """The training part divided once more, to choose settings on."""
    if trial.new_users:
        inner = strong_generalization(trial.train, 0.2, random_state=seed + 1000)
        return Trial(inner.train, inner.fold_in, inner.test, new_users=True)
    parts = hold_out(trial.train, 0.2, random_state=seed + 1000)
    return Trial(parts.train, parts.train, parts.test, new_users=False)


def _fitted(trial: Trial, seed: int, **settings: Any) -> ImplicitALS:
    return ImplicitALS(**settings, random_state=seed, n_jobs=1).fit(trial.train)


def _chosen(trial: Trial, seed: int, choices: Sequence[dict[str, Any]], metric: str = "mpr") -> dict[str, Any]:
    """The settings that do best on the validation part."""
    inner = _inner(trial, seed)
    values = [judge(_fitted(inner, seed, **settings), inner, k=20)[metric] for settings in choices]
    return choices[int(np.argmin(values) if metric == "mpr" else np.argmax(values))]


def loss_never_rises(seed: int, scale: str) -> Measurement:
    """The cost after each iteration of the exact solver, in double precision."""
    data = interactions(seed, scale)
    history = []
    for factors in (8, 32):
        model = ImplicitALS(
            factors,
            alpha=40.0,
            regularization=10.0,
            solver="cholesky",
            dtype="float64",
            iterations={"smoke": 4, "quick": 15, "full": 60}[scale],
            random_state=seed,
            n_jobs=1,
        ).fit(data.matrix)
        history.append(np.array(model.loss_history_))
    rises = [max(0.0, float((np.diff(losses) / losses[:-1]).max())) for losses in history]  # to fall is not to rise
    curves = {
        f"k = {factors}": Curve((np.arange(len(losses)) + 1.0).tolist(), losses.tolist())
        for factors, losses in zip((8, 32), history, strict=True)
    }
    plot = Plot(
        "Cost after each iteration", "iteration", "cost", curves, y_log=True, caption="Exact solver, alpha = 40."
    )
    return Measurement({"largest_rise": max(rises)}, {"cost": plot})


def explanations_add_up(seed: int, scale: str) -> Measurement:
    """Contributions of a user's items against the score of the item that they explain."""
    data = interactions(seed, scale)
    model = ImplicitALS(16, alpha=40.0, regularization=30.0, iterations=5, dtype="float64", random_state=seed, n_jobs=1)
    model.fit(data.matrix)
    rng = np.random.default_rng(seed)
    pairs = np.stack(
        [rng.integers(0, size, {"smoke": 20, "quick": 300, "full": 3000}[scale]) for size in data.shape], 1
    )
    scores = model.score(pairs[:, 0], pairs[:, 1])
    sums = np.array([model.explain(int(u), int(i), data.matrix[[u]]).contributions.sum() for u, i in pairs])
    return Measurement({"largest_difference": float(np.abs(sums - scores).max())})


def ordering(seed: int, scale: str) -> Measurement:
    """Expected percentile rank of factors, item neighbourhood and popularity; the least margins over the data sets."""
    settings: dict[str, tuple[Interactions, dict[str, Any]]] = {
        "MovieLens 100K": (interactions(seed, scale), {"alpha": 4.0})
    }
    if scale == "full":
        from tenfold.recommend.published import lastfm, msweb

        if (plays := lastfm()) is not None:
            settings["Last.fm"] = (plays, {"confidence": "log", "alpha": 40.0, "epsilon": 100.0})
        if (visits := msweb()) is not None:
            settings["MSWeb"] = (visits, {"alpha": 10.0})
    ranks: dict[str, list[float]] = {"factors": [], "item neighbourhood": [], "popularity": []}
    for data, confidence in settings.values():
        trial = _trial(data, seed)
        choices = [
            {"factors": 32, **confidence, "iterations": _iterations(scale), "regularization": value}
            for value in LAMBDAS
        ]
        models = (
            _fitted(trial, seed, **_chosen(trial, seed, choices)),
            ItemCosine(None).fit(trial.train),
            Popularity().fit(trial.train),
        )
        for name, model in zip(ranks, models, strict=True):
            ranks[name].append(judge(model, trial, k=20)["mpr"])
    factors, neighbourhood, popularity = (np.array(values) for values in ranks.values())
    places = np.arange(float(len(settings))).tolist()
    plot = Plot(
        "Expected percentile rank",
        "",
        "percent; 50 is chance, lower is better",
        {name: Curve(places, values) for name, values in ranks.items()},
        kind="bar",
        ticks=tuple(settings),
        caption="A fifth of each user's items held out; what the user had in training is no candidate.",
    )
    return Measurement(
        {
            "neighbourhood_minus_factors": float((neighbourhood - factors).min()),
            "popularity_minus_neighbourhood": float((popularity - neighbourhood).min()),
            "popularity": float(popularity.max()),
            "factors": float(factors[0]),
            "neighbourhood": float(neighbourhood[0]),
        },
        {"ranks": plot},
    )


def more_factors(seed: int, scale: str) -> Measurement:
    """Expected percentile rank by the number of factors; lambda chosen for each."""
    trial = _trial(interactions(seed, scale), seed)
    sizes = [2, 4, 8, 16, 32, 64] + ([128, 256] if scale == "full" else [])
    ranks = []
    for factors in sizes:
        choices = [
            {"factors": factors, "alpha": 4.0, "iterations": _iterations(scale), "regularization": value}
            for value in LAMBDAS[1:]
        ]
        ranks.append(judge(_fitted(trial, seed, **_chosen(trial, seed, choices)), trial, k=20)["mpr"])
    plot = Plot(
        "Expected percentile rank by the number of factors",
        "factors",
        "percent, lower is better",
        {"ImplicitALS": Curve(sizes, ranks)},
        x_log=True,
        caption="MovieLens 100K, alpha = 4, lambda chosen on a validation part for each number of factors.",
    )
    early, late = ranks[0] - ranks[3], ranks[3] - ranks[-1]
    return Measurement({"gain_2_to_16": early, "early_minus_late": early - late, "least": min(ranks)}, {"ranks": plot})


def confidence_matters(seed: int, scale: str) -> Measurement:
    """Expected percentile rank by alpha; alpha 0 is plain factorisation of the preferences."""
    trial = _trial(interactions(seed, scale), seed)
    inner = _inner(trial, seed)
    alphas = [0.0, 1.0, 4.0, 16.0, 40.0]
    known, ranks = [], []
    for alpha in alphas:
        choices = [
            {"factors": 32, "alpha": alpha, "iterations": _iterations(scale), "regularization": value}
            for value in LAMBDAS
        ]
        settings = _chosen(trial, seed, choices)
        known.append(judge(_fitted(inner, seed, **settings), inner, k=20)["mpr"])
        ranks.append(judge(_fitted(trial, seed, **settings), trial, k=20)["mpr"])
    best = 1 + int(np.argmin(known[1:]))
    plot = Plot(
        "Expected percentile rank by alpha",
        "alpha",
        "percent, lower is better",
        {"ImplicitALS": Curve(range(len(alphas)), ranks)},
        caption="MovieLens 100K, 32 factors, lambda chosen on a validation part for each alpha.",
        ticks=tuple(f"{alpha:g}" for alpha in alphas),
        kind="bar",
    )
    return Measurement({"gain": ranks[0] - ranks[best], "alpha": alphas[best], "without": ranks[0]}, {"ranks": plot})


def frequency_scaling(seed: int, scale: str) -> Measurement:
    """Recall of users that training has not seen, with lambda alike for all rows and in proportion to their frequency.

    As in section 4 of the paper: likes are ratings of 4 or more, users have 5 or more, a fifth of them is held out. For either
    exponent lambda* and w0 are chosen together, on users held out from the training part, from the same values: lambda* is
    lambda on the scale that all exponents share.
    """
    data = interactions(seed, scale).binarize(4).minimum_counts(user=5)
    trial = make_trial(data, "users", fraction=0.2, random_state=seed)
    inner = _inner(trial, seed)
    lambdas, weights = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3), (0.03, 0.1, 0.3)

    def fitted(part: Trial, exponent: float, choice: tuple[float, float]) -> ImplicitALS:
        return _fitted(
            part,
            seed,
            factors=64,
            confidence="raw",
            target="rendle",
            unobserved_weight=choice[1],
            frequency_exponent=exponent,
            regularization=shifted_regularization(part.train, *choice, exponent),
            iterations=_iterations(scale),
        )

    numbers: dict[str, float] = {}
    recall: dict[float, float] = {}
    for exponent in (0.0, 1.0):
        choices = list(product(lambdas, weights))
        known = [judge(fitted(inner, exponent, choice), inner, k=20)["recall@20"] for choice in choices]
        best = choices[int(np.argmax(known))]
        recall[exponent] = judge(fitted(trial, exponent, best), trial, k=20)["recall@20"]
        numbers |= {f"recall_{exponent:g}": recall[exponent], f"lambda_{exponent:g}": best[0]}
    plot = Plot(
        "Recall@20 of users that training has not seen",
        "exponent of the frequency",
        "recall@20",
        {"ImplicitALS": Curve((0, 1), [recall[0.0], recall[1.0]])},
        kind="bar",
        ticks=("0", "1"),
        caption="A fifth of the users held out, of whom four fifths of the items are shown; lambda* and w0 chosen for each.",
    )
    return Measurement({"gain": recall[1.0] - recall[0.0], **numbers}, {"recall": plot})


PERCENT = "% of the list"
CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="recommend.loss-never-rises",
        area="recommend",
        title="Alternating least squares never raises the cost",
        statement="Each half step is the exact minimum given the other side, so the cost never rises.",
        paper=f"{HKV}, section 4",
        published="A property of the method; no figure is given.",
        measure=loss_never_rises,
        criteria=(Criterion("largest_rise", "at most", 1e-10, "of the cost"),),
        descriptions={"largest_rise": "largest rise of the cost in an iteration"},
        seeds={"quick": 2},
        limits="The exact solver in double precision. Few steps of conjugate gradients need not have the property.",
        needs=("movielens-100k",),
    ),
    Claim(
        id="recommend.explanations-add-up",
        area="recommend",
        title="Explanations add up to the score",
        statement="A score is a sum over the user's own items, so that each item's part can be told.",
        paper=f"{HKV}, section 5",
        published="A derivation.",
        measure=explanations_add_up,
        criteria=(Criterion("largest_difference", "at most", 1e-9),),
        descriptions={"largest_difference": "largest difference between a score and the sum of its parts"},
        ranges={"largest_difference": (0.0, math.inf)},
        seeds={"quick": 2},
        limits="Double precision; scores lie mostly between 0 and 1.",
        needs=("movielens-100k",),
    ),
    Claim(
        id="recommend.ordering",
        area="recommend",
        title="Factors rank better than item neighbourhoods, these better than popularity",
        statement=(
            "The expected percentile rank of held-out items is lower with factors than with item neighbourhoods, lower with "
            "these than by popularity, and by popularity below chance."
        ),
        paper=f"{HKV}, section 6, figure 1",
        published="Television, a week ahead: popularity 16.46 %, neighbourhood 10.74 %, factors 9.08 % (50) to 8.35 % (200).",
        measure=ordering,
        criteria=(
            Criterion("neighbourhood_minus_factors", "at least", 0.0, PERCENT),
            Criterion("popularity_minus_neighbourhood", "at least", 0.0, PERCENT),
            Criterion("popularity", "at most", 50.0, PERCENT),
        ),
        units={"factors": PERCENT, "neighbourhood": PERCENT},
        descriptions={
            "neighbourhood_minus_factors": "percentile rank of item neighbourhoods less that of factors",
            "popularity_minus_neighbourhood": "percentile rank of popularity less that of item neighbourhoods",
            "popularity": "percentile rank of popularity, 50 is chance",
            "factors": "percentile rank of factors",
            "neighbourhood": "percentile rank of item neighbourhoods",
        },
        limits=(
            "Ratings of films in place of hours of television; a random part held out, not the next week. At scale full the "
            "least margin over MovieLens 100K, Last.fm and MSWeb, as far as these are in $TENFOLD_DATA. On MSWeb (285 areas, "
            "three visits a user) neighbourhoods were seen to rank slightly better than 32 factors."
        ),
        needs=("movielens-100k",),
    ),
    Claim(
        id="recommend.more-factors",
        area="recommend",
        title="More factors rank better, up to a point",
        statement="The expected percentile rank falls with the number of factors, and falls less and less.",
        paper=f"{HKV}, section 6, figure 1",
        published="9.08 % with 50 factors, 8.35 % with 200.",
        measure=more_factors,
        criteria=(
            Criterion("gain_2_to_16", "at least", 0.0, PERCENT),
            Criterion("early_minus_late", "at least", 0.0, PERCENT),
        ),
        units={"least": PERCENT},
        descriptions={
            "gain_2_to_16": "what 16 factors gain in percentile rank over 2",
            "early_minus_late": "gain from 2 to 16 factors less the gain from 16 on",
            "least": "best percentile rank of any number of factors",
        },
        limits="943 users: the point after which factors no longer help comes far earlier than with 300,000.",
        needs=("movielens-100k",),
    ),
    Claim(
        id="recommend.confidence-matters",
        area="recommend",
        title="Confidence that grows with r ranks better than none",
        statement="Weighting entries by 1 + alpha r ranks held-out items better than equal weights (alpha = 0).",
        paper=f"{HKV}, section 6",
        published="Factorising the preferences with equal confidence ranks worse than the full model.",
        measure=confidence_matters,
        criteria=(Criterion("gain", "at least", 0.0, PERCENT),),
        units={"without": PERCENT},
        descriptions={
            "gain": "what the best alpha gains in percentile rank over alpha = 0",
            "alpha": "the alpha chosen on the validation part",
            "without": "percentile rank with alpha = 0",
        },
        limits="Stars from 1 to 5 vary less than hours of television. The best alpha is chosen on a validation part.",
        needs=("movielens-100k",),
    ),
    Claim(
        id="recommend.frequency-scaling",
        area="recommend",
        title="Regularisation by frequency raises recall",
        statement="Regularising rows in proportion to their frequency gives better recall than the same lambda for all.",
        paper=f"{RENDLE}, sections 3.3 and 4",
        published="Part of what lifts Recall@20 on MovieLens 20M from 0.360 to 0.395.",
        measure=frequency_scaling,
        criteria=(Criterion("gain", "at least", 0.0),),
        descriptions={
            "gain": "what regularisation by frequency gains in recall@20",
            "recall_0": "recall@20, the same lambda for all rows",
            "recall_1": "recall@20, lambda in proportion to the frequency",
            "lambda_0": "lambda* chosen, the same lambda for all rows",
            "lambda_1": "lambda* chosen, lambda in proportion to the frequency",
        },
        seeds={"quick": 6},
        limits=(
            "A small, dense data set and 64 factors; the paper's are large and have 2,048. For either exponent the best of the "
            "same 21 pairs of lambda* and unobserved weight, by recall of users held out from the training part."
        ),
        needs=("movielens-100k",),
    ),
    *PUBLISHED,
)
