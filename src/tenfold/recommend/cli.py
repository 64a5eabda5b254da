"""The command ``tenfold recommend``: fit a recommender to a log of events, judge it, tune it, and use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenfold.console.options import Json, Out, Resume, Seed, Threads
from tenfold.recommend.command_options import (
    Alpha,
    Confidence,
    Data,
    Dtype,
    Epsilon,
    Exponent,
    Factors,
    Fraction,
    HalfLife,
    Item,
    Iterations,
    MinItem,
    MinUser,
    Model,
    OptionalData,
    Regularization,
    Solver,
    Split,
    Target,
    Time,
    Unobserved,
    User,
    Value,
    one_of,
)

if TYPE_CHECKING:
    import numpy as np


app = typer.Typer(
    no_args_is_help=True,
    help="Recommend from what people did: fit, evaluate, tune, recommend, similar, explain.",
)


@app.command()
def fit(
    data: Data,
    out: Out = Path("model"),
    user: User = None,
    item: Item = None,
    value: Value = None,
    time: Time = None,
    min_user: MinUser = 0,
    min_item: MinItem = 0,
    half_life: HalfLife = None,
    factors: Factors = 64,
    regularization: Regularization = 0.01,
    alpha: Alpha = 1.0,
    confidence: Confidence = "linear",
    epsilon: Epsilon = 1.0,
    unobserved_weight: Unobserved = 1.0,
    frequency_exponent: Exponent = 0.0,
    target: Target = "hkv",
    iterations: Iterations = 15,
    solver: Solver = "auto",
    tol: Annotated[
        float | None, typer.Option("--tol", help="Stop when the loss falls by less than this part.", show_default="off")
    ] = None,
    dtype: Dtype = "float32",
    engine: Annotated[
        str, typer.Option("--engine", callback=one_of("local", "ray"), help="local, or ray (several machines).")
    ] = "local",
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Learn vectors of users and items from a log of events, and write a model folder with the original ids."""
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_record
    from tenfold.files.atomic import check_folder
    from tenfold.recommend.command_inputs import new_model, prepared, read_events
    from tenfold.runtime import set_threads

    set_threads(threads)
    check_folder(out)  # before the work, not after it
    events = prepared(read_events(data, user, item, value, time), min_user, min_item, half_life)
    model = new_model(
        factors=factors,
        regularization=regularization,
        alpha=alpha,
        confidence=confidence,
        epsilon=epsilon,
        unobserved_weight=unobserved_weight,
        frequency_exponent=frequency_exponent,
        target=target,
        iterations=iterations,
        solver=solver,
        tol=tol,
        dtype=dtype,
        random_state=seed,
        n_jobs=threads,
    )
    with progress(f"fitting {data.name}", iterations) as display:

        def tell(iteration: int, loss: float) -> None:
            display.advance(1, loss=loss)

        model.fit(events.matrix, callback=tell, engine=engine)
    model.save_pretrained(out, user_ids=events.user_ids, item_ids=events.item_ids)
    show_record(
        f"Model in {out}",
        {
            "model": str(out),
            "users": events.shape[0],
            "items": events.shape[1],
            "entries": events.matrix.nnz,
            "factors": model.factors,
            "iterations": model.n_iter_,
            "loss": float(model.loss_history_[-1]),
        },
        json=json,
    )


@app.command()
def evaluate(
    data: Data,
    split: Split = "hold-out",
    fraction: Fraction = 0.2,
    metrics: Annotated[
        str,
        typer.Option("--metrics", help="recall@K, ndcg@K, map@K, hit_rate@K, coverage@K, mrr, auc, mpr; by commas."),
    ] = "recall@20,ndcg@100,mpr,coverage@20",
    neighbors: Annotated[int, typer.Option("--neighbors", min=1, help="Of the item neighbourhood.")] = 100,
    intervals: Annotated[bool, typer.Option("--intervals", help="Add 95 % bootstrap intervals over users.")] = False,
    user: User = None,
    item: Item = None,
    value: Value = None,
    time: Time = None,
    min_user: MinUser = 0,
    min_item: MinItem = 0,
    half_life: HalfLife = None,
    factors: Factors = 64,
    regularization: Regularization = 0.01,
    alpha: Alpha = 1.0,
    confidence: Confidence = "linear",
    epsilon: Epsilon = 1.0,
    unobserved_weight: Unobserved = 1.0,
    frequency_exponent: Exponent = 0.0,
    target: Target = "hkv",
    iterations: Iterations = 15,
    solver: Solver = "auto",
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Hold events out, fit on the rest, and judge the model beside item neighbourhoods and popularity, in one table."""
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_table
    from tenfold.recommend.command_inputs import new_model, prepared, read_events
    from tenfold.recommend.evaluation import baselines, judge, make_trial, metric_names
    from tenfold.runtime import set_threads

    set_threads(threads)
    names, lengths = metric_names(metrics)
    events = prepared(read_events(data, user, item, value, time), min_user, min_item, half_life)
    trial = make_trial(events, split, fraction=fraction, random_state=seed)
    model = new_model(
        factors=factors,
        regularization=regularization,
        alpha=alpha,
        confidence=confidence,
        epsilon=epsilon,
        unobserved_weight=unobserved_weight,
        frequency_exponent=frequency_exponent,
        target=target,
        iterations=iterations,
        solver=solver,
        random_state=seed,
        n_jobs=threads,
    )
    rows = []
    with progress("fitting and judging", iterations + 3) as display:

        def tell(iteration: int, loss: float) -> None:
            display.advance(1, loss=loss)

        for name, contestant in {"ImplicitALS": model, **baselines(neighbors)}.items():
            display.update(description=name)
            contestant.fit(trial.train, **({"callback": tell} if contestant is model else {}))
            found = judge(contestant, trial, k=lengths)
            row: list[object] = [name]
            for metric in names:
                row.append(found[metric])
                if intervals:
                    known = metric in found.per_user
                    row.extend(found.interval(metric, random_state=seed) if known else (None, None))
            rows.append(row)
            display.advance(1)
    columns = ["model"]
    for metric in names:
        columns += [metric, f"{metric} low", f"{metric} high"] if intervals else [metric]
    judged = int((trial.test.sum(axis=1) > 0).sum())
    show_table(
        f"{trial.train.nnz} entries to train on, {trial.test.nnz} to find, {judged} users", columns, rows, json=json
    )


@app.command()
def tune(
    data: Data,
    out: Out = Path("tuning"),
    candidates: Annotated[int, typer.Option("--candidates", "-n", min=1, help="Settings to try.")] = 27,
    metric: Annotated[str, typer.Option("--metric", help="recall@K, ndcg@K, map@K, mrr, auc, mpr, ...")] = "ndcg@100",
    factors: Annotated[str, typer.Option("--factors", help="Range, LOW:HIGH, or one value.")] = "16:128",
    regularization: Annotated[str, typer.Option("--regularization", help="Range or value.")] = "0.001:100",
    alpha: Annotated[str, typer.Option("--alpha", help="Range or value.")] = "0.1:100",
    frequency_exponent: Annotated[str, typer.Option("--frequency-exponent", help="Range or value.")] = "0:1",
    confidence: Confidence = "linear",
    iterations: Iterations = 15,
    solver: Solver = "auto",
    split: Split = "hold-out",
    fraction: Fraction = 0.2,
    user: User = None,
    item: Item = None,
    value: Value = None,
    time: Time = None,
    min_user: MinUser = 0,
    min_item: MinItem = 0,
    half_life: HalfLife = None,
    seed: Seed = 0,
    threads: Threads = None,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Search for good settings by successive halving on held-out events; OUT/tuning.json keeps every attempt."""
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_table
    from tenfold.files.atomic import check_folder
    from tenfold.recommend.command_inputs import new_model, prepared, read_events
    from tenfold.recommend.evaluation import judge, make_trial, metric_names
    from tenfold.recommend.tuning import Parameters, draw_candidates, search_space, successive_halving, total_iterations
    from tenfold.runtime import set_threads

    set_threads(threads)
    (name,), lengths = metric_names(metric.partition(",")[0])
    space = search_space(
        factors=factors, regularization=regularization, alpha=alpha, frequency_exponent=frequency_exponent
    )
    chosen = draw_candidates(candidates, space, seed=seed)
    check_folder(out)
    events = prepared(read_events(data, user, item, value, time), min_user, min_item, half_life)
    trial = make_trial(events, split, fraction=fraction, random_state=seed)
    fixed: dict[str, Any] = {"confidence": confidence, "solver": solver, "random_state": seed}

    def measure(parameters: Parameters, length: int) -> dict[str, float]:
        model = new_model(**{**fixed, **parameters}, iterations=length, n_jobs=threads)
        return dict(judge(model.fit(trial.train), trial, k=lengths))

    settings = {
        "data": str(data.resolve()),
        "bytes": data.stat().st_size,
        "columns": [user, item, value, time],
        "kept": [min_user, min_item, half_life],
        "split": split,
        "fraction": fraction,
        **fixed,
    }
    with progress(f"tuning on {data.name}", total_iterations(candidates, iterations)) as display:
        attempts = successive_halving(
            measure,
            chosen,
            metric=name,
            iterations=iterations,
            log=out / "tuning.json",
            settings=settings,
            resume=resume,
            on_progress=display.advance,
        )
    columns = [*space, "iterations", name]
    rows = [[*(a["parameters"][p] for p in space), a["iterations"], a["metrics"][name]] for a in attempts]
    show_table(f"The best of {candidates} settings; all attempts in {out}/tuning.json", columns, rows[:10], json=json)


@app.command()
def recommend(
    model: Model,
    data: OptionalData = None,
    users: Annotated[
        Path | None,
        typer.Option("--users", help="File of user ids, one a line.", show_default="all of the model and of DATA"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .parquet, .csv or .tsv.")] = Path(
        "recommendations.parquet"
    ),
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Recommendations a user.")] = 10,
    seen: Annotated[bool, typer.Option("--seen", help="Also recommend what users had.")] = False,
    fold_in: Annotated[
        bool,
        typer.Option("--fold-in", help="Find the vectors of all users in DATA from it, not only those of new ones."),
    ] = False,
    block: Annotated[int, typer.Option("--block", min=1, help="Users at a time.")] = 10_000,
    user: User = None,
    item: Item = None,
    value: Value = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Write each user's best items, one a row, best first; streams, whatever the number of users.

    Without DATA users may get items again that they had: the model does not keep them.
    """
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_record
    from tenfold.recommend.audience import Audience
    from tenfold.recommend.command_inputs import load_model, read_events
    from tenfold.recommend.recommendations import blocks_of, check_output, read_ids, write_recommendations
    from tenfold.runtime import set_threads

    set_threads(threads)
    check_output(out)
    fitted, user_ids, item_ids = load_model(model)
    audience = Audience(
        fitted,
        user_ids,
        item_ids,
        None if data is None else read_events(data, user, item, value, None, undated=True),
        refresh=fold_in,
    )
    total = len(audience.everyone) if users is None else None
    served = 0
    with progress("recommending", total) as display:

        def blocks() -> Iterator[np.ndarray]:
            nonlocal served
            if users is None:
                parts: Iterator[Any] = ((None, ids) for ids in blocks_of(audience.everyone, block))
            else:
                parts = read_ids(users, integers=audience.everyone.dtype.kind == "i", block=block)
            for lines, ids in parts:
                audience.require(ids, users, lines)
                yield ids
                served += len(ids)
                display.advance(len(ids))

        rows = write_recommendations(
            out, blocks(), lambda ids: audience.lists(ids, number, exclude_seen=not seen), item_ids
        )
    show_record(
        f"Recommendations in {out}",
        {"out": str(out), "users": served, "rows": rows, "new items left out": audience.unknown_items},
        json=json,
    )


@app.command()
def similar(
    model: Model,
    items: Annotated[list[str], typer.Argument(help="Ids of items; with --of-users, of users.")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="How many each.")] = 10,
    of_users: Annotated[bool, typer.Option("--of-users", help="Users that are alike, in place of items.")] = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """The most similar items (by the cosine of their vectors), itself first."""
    from tenfold.console.tables import show_table
    from tenfold.recommend.command_inputs import load_model, place_of
    from tenfold.runtime import set_threads

    set_threads(threads)
    fitted, user_ids, item_ids = load_model(model)
    kind, ids = ("user", user_ids) if of_users else ("item", item_ids)
    rows = []
    for wanted in items:
        place = place_of(ids, wanted, kind)
        found, cosines = fitted.similar_users(place, n=number) if of_users else fitted.similar_items(place, n=number)
        rows += [[wanted, ids[i].item(), float(c)] for i, c in zip(found, cosines, strict=True) if i >= 0]
    show_table(f"Similar {kind}s", [kind, "similar", "cosine"], rows, json=json)


@app.command()
def explain(
    model: Model,
    data: Data,
    for_user: Annotated[str, typer.Option("--user", "-u", help="Id of a user in DATA.")],
    for_item: Annotated[str, typer.Option("--item", help="Id of an item.")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Contributions to show.")] = 10,
    user: User = None,
    item: Item = None,
    value: Value = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Why this item for this user: what each of the user's own items contributes to the score; the parts add up to it."""
    from tenfold.console.tables import show_table
    from tenfold.recommend.audience import Audience
    from tenfold.recommend.command_inputs import load_model, place_of, read_events
    from tenfold.runtime import set_threads

    set_threads(threads)
    fitted, user_ids, item_ids = load_model(model)
    events = read_events(data, user, item, value, None, undated=True)
    audience = Audience(fitted, user_ids, item_ids, events)
    total, parts = audience.explain(place_of(events.user_ids, for_user, "user"), place_of(item_ids, for_item, "item"))
    rows: list[list[object]] = [[item_ids[place].item(), part] for place, part in parts[:number]]
    if len(parts) > number:
        rows.append([f"{len(parts) - number} others", sum(part for _, part in parts[number:])])
    rows.append(["score", total])
    show_table(f"Why {for_item} for {for_user}", ["item", "contribution"], rows, json=json)
