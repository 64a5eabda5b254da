"""The command ``tenfold recommend``: fit a recommender to a log of events, judge it, tune it, and use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenfold.console.options import Json, Out, Resume, Seed, Threads
from tenfold.recommend.command_options import (
    Columns,
    Data,
    DatedEvents,
    HeldOut,
    Model,
    OptionalData,
    Searched,
    Settings,
    grouped,
    one_of,
)

if TYPE_CHECKING:
    import numpy as np


app = typer.Typer(
    no_args_is_help=True,
    help="Recommend from what people did: fit, evaluate, tune, recommend, similar, explain.",
)


@app.command()
@grouped
def fit(
    data: Data,
    columns: DatedEvents,
    searched: Searched,
    settings: Settings,
    out: Out = Path("model"),
    tol: Annotated[
        float | None, typer.Option("--tol", help="Stop when the loss falls by less than this part.", show_default="off")
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", callback=one_of("local", "ray"), help="local, or ray (several machines).")
    ] = "local",
    seed: Seed = 0,
    threads: Threads = None,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Learn vectors of users and items from a log of events, and write a model folder with the original ids.

    A run that was stopped or killed keeps its last iteration in OUT/checkpoints; the same command with --resume goes on.
    """
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_record
    from tenfold.console.terminal import remark
    from tenfold.files.atomic import check_folder
    from tenfold.recommend.command_inputs import is_parquet
    from tenfold.runtime import set_threads
    from tenfold.training.checkpoints import clear_checkpoints, last_checkpoint

    set_threads(threads)
    check_folder(out)  # before the work, not after it
    model = settings.model(engine=engine, tol=tol, random_state=seed, n_jobs=threads, **dataclasses.asdict(searched))
    checkpoints = out / "checkpoints"
    if resume and last_checkpoint(checkpoints) is None:
        remark(f"there is no checkpoint to resume from in {checkpoints}; the fit starts at the beginning")
    spread = engine == "ray" and columns.is_plain and is_parquet(data)  # the driver need not hold the events
    events = None if spread else columns.read(data)
    with progress(f"fitting {data.name}", settings.iterations) as display:
        done = 0

        def tell(iteration: int, loss: float) -> None:
            nonlocal done
            display.advance(iteration + 1 - done, loss=loss)
            done = iteration + 1

        if events is None:
            from tenfold.recommend.ray_parquet import fit_parquet

            entries = fit_parquet(
                model, data, columns=columns.names, callback=tell, checkpoint=checkpoints, resume=resume
            )
        else:
            model.fit(events.matrix, callback=tell, engine=engine, checkpoint=checkpoints, resume=resume)
            model.user_ids_, model.item_ids_, entries = events.user_ids, events.item_ids, events.matrix.nnz
    model.save_pretrained(out)
    clear_checkpoints(checkpoints)
    with suppress(OSError):  # somebody's file is in it
        checkpoints.rmdir()
    show_record(
        f"Model in {out}",
        {
            "model": str(out),
            "users": len(model.user_factors_),
            "items": len(model.item_factors_),
            "entries": entries,
            "factors": model.factors,
            "iterations": model.n_iter_,
            "loss": float(model.loss_history_[-1]),
        },
        json=json,
    )


@app.command()
@grouped
def evaluate(
    data: Data,
    columns: DatedEvents,
    held_out: HeldOut,
    searched: Searched,
    settings: Settings,
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics", help="recall@K, precision@K, ndcg@K, map@K, hit_rate@K, coverage@K, mrr, auc, mpr; by commas."
        ),
    ] = "recall@20,ndcg@100,mpr,coverage@20",
    neighbors: Annotated[int, typer.Option("--neighbors", min=1, help="Of the item neighbourhood.")] = 100,
    intervals: Annotated[bool, typer.Option("--intervals", help="Add 95 % bootstrap intervals over users.")] = False,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Hold events out, fit on the rest, and judge the model beside item neighbourhoods and popularity, in one table."""
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_table
    from tenfold.console.terminal import remark
    from tenfold.recommend.evaluation import baselines, judge, metric_names
    from tenfold.runtime import set_threads

    set_threads(threads)
    names, lengths = metric_names(metrics)
    model = settings.model(random_state=seed, n_jobs=threads, **dataclasses.asdict(searched))
    trial = held_out.trial(columns.read(data), seed)
    if trial.cold:
        remark(f"{trial.cold} users have nothing in the part to train on; they are left out")
    rows = []
    with progress("fitting and judging", settings.iterations + 3) as display:

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
    columns_shown = ["model"]
    for metric in names:
        columns_shown += [metric, f"{metric} low", f"{metric} high"] if intervals else [metric]
    judged = int((trial.test.sum(axis=1) > 0).sum())
    title = f"{trial.train.nnz} entries to train on, {trial.test.nnz} to find, {judged} users"
    show_table(title, columns_shown, rows, json=json)


@app.command()
@grouped
def tune(
    data: Data,
    columns: DatedEvents,
    held_out: HeldOut,
    settings: Settings,
    out: Out = Path("tuning"),
    candidates: Annotated[int, typer.Option("--candidates", "-n", min=1, help="Settings to try.")] = 27,
    metric: Annotated[str, typer.Option("--metric", help="recall@K, ndcg@K, map@K, mrr, auc, mpr, ...")] = "ndcg@100",
    factors: Annotated[str, typer.Option("--factors", "-k", help="Range, LOW:HIGH, or one value.")] = "16:128",
    regularization: Annotated[str, typer.Option("--regularization", "-l", help="Range or value.")] = "0.001:100",
    alpha: Annotated[str, typer.Option("--alpha", "-a", help="Range or value.")] = "0.1:100",
    frequency_exponent: Annotated[str, typer.Option("--frequency-exponent", help="Range or value.")] = "0:1",
    seed: Seed = 0,
    threads: Threads = None,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Search for good settings by successive halving on held-out events; OUT/tuning.json keeps every attempt."""
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_table
    from tenfold.files.atomic import check_folder
    from tenfold.recommend.evaluation import judge, metric_names
    from tenfold.recommend.tuning import Parameters, draw_candidates, search_space, successive_halving, total_iterations
    from tenfold.runtime import set_threads

    set_threads(threads)
    (name,), lengths = metric_names(metric.partition(",")[0])
    space = search_space(
        factors=factors, regularization=regularization, alpha=alpha, frequency_exponent=frequency_exponent
    )
    chosen = draw_candidates(candidates, space, seed=seed)
    check_folder(out)
    settings.model()  # before the work, not after it
    trial = held_out.trial(columns.read(data), seed)

    def measure(parameters: Parameters, length: int) -> dict[str, float]:
        others: dict[str, Any] = {**parameters, "iterations": length, "random_state": seed, "n_jobs": threads}
        model = settings.model(**others)
        return dict(judge(model.fit(trial.train), trial, k=lengths))

    described = {
        "data": str(data.resolve()),
        "bytes": data.stat().st_size,
        "seed": seed,
        **dataclasses.asdict(columns),
        **dataclasses.asdict(held_out),
        **{name: value for name, value in dataclasses.asdict(settings).items() if name != "iterations"},
    }
    with progress(f"tuning on {data.name}", total_iterations(candidates, settings.iterations)) as display:
        attempts = successive_halving(
            measure,
            chosen,
            metric=name,
            iterations=settings.iterations,
            log=out / "tuning.json",
            settings=described,
            resume=resume,
            on_progress=display.advance,
        )
    shown = [*space, "iterations", name]
    rows = [[*(a["parameters"][p] for p in space), a["iterations"], a["metrics"][name]] for a in attempts]
    show_table(f"The best of {candidates} settings; all attempts in {out}/tuning.json", shown, rows[:10], json=json)


@app.command()
@grouped
def recommend(
    model: Model,
    columns: Columns,
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
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Write each user's best items, one a row, best first; streams, whatever the number of users.

    Without DATA users may get items again that they had: the model does not keep them. Users who liked nothing, or had
    everything, have no list: no row is written, and they are counted.
    """
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_record
    from tenfold.recommend.audience import Audience
    from tenfold.recommend.command_inputs import load_model
    from tenfold.recommend.recommendations import blocks_of, check_output, read_ids, write_recommendations
    from tenfold.runtime import set_threads

    set_threads(threads)
    check_output(out)
    fitted, user_ids, item_ids = load_model(model)
    audience = Audience(
        fitted,
        user_ids,
        item_ids,
        None if data is None else columns.read(data),
        refresh=fold_in,
    )
    total = len(audience.everyone) if users is None else None
    served = empty = 0
    with progress("recommending", total) as display:

        def lists(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            nonlocal empty
            found, scores = audience.lists(ids, number, exclude_seen=not seen)
            empty += int((found[:, 0] < 0).sum())
            return found, scores

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

        rows = write_recommendations(out, blocks(), lists, item_ids)
    show_record(
        f"Recommendations in {out}",
        {
            "out": str(out),
            "users": served,
            "users without a list": empty,
            "rows": rows,
            "new items left out": audience.unknown_items,
        },
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
@grouped
def explain(
    model: Model,
    data: Data,
    columns: Columns,
    for_user: Annotated[str, typer.Option("--user", "-u", help="Id of a user in DATA.")],
    for_item: Annotated[str, typer.Option("--item", help="Id of an item.")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="Contributions to show.")] = 10,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Why this item for this user: what each of the user's own items contributes to the score; the parts add up to it."""
    from tenfold.console.tables import show_table
    from tenfold.recommend.audience import Audience
    from tenfold.recommend.command_inputs import load_model, place_of
    from tenfold.runtime import set_threads

    set_threads(threads)
    fitted, user_ids, item_ids = load_model(model)
    events = columns.read(data)
    audience = Audience(fitted, user_ids, item_ids, events)
    total, parts = audience.explain(place_of(events.user_ids, for_user, "user"), place_of(item_ids, for_item, "item"))
    rows: list[list[object]] = [[item_ids[place].item(), part] for place, part in parts[:number]]
    if len(parts) > number:
        rows.append([f"{len(parts) - number} others", sum(part for _, part in parts[number:])])
    rows.append(["score", total])
    show_table(f"Why {for_item} for {for_user}", ["item", "contribution"], rows, json=json)
