"""The command ``tenfold raml``: train from text to text by four objectives, use and compare the models, draw targets."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tenfold.console.options import Device, Json, Out, Resume, Seed, Threads
from tenfold.raml import command_options as options

app = typer.Typer(
    no_args_is_help=True,
    help="From text to text, with targets drawn around the right ones: fit, predict, evaluate, augment, compare.",
)


@app.command()
def fit(
    pairs: options.PairsFile,
    out: Out = Path("model"),
    objective: Annotated[
        str,
        typer.Option("--objective", help="ml, raml, smoothing (label smoothing) or risk (minimum-risk training)."),
    ] = "raml",
    tau: options.Tau = 0.7,
    last_tau: Annotated[
        float | None,
        typer.Option(
            "--last-tau", min=0.0, help="Temperature at the end, reached in a straight line.", show_default="as --tau"
        ),
    ] = None,
    scale: options.Scale = "paper",
    payoff: options.Payoff = "edit",
    samples: options.Samples = 1,
    smoothing: options.Smoothing = 0.1,
    candidates: options.Candidates = 8,
    sharpness: options.Sharpness = 1.0,
    warm_share: options.WarmShare = 0.5,
    source_tokens: options.SourceTokens = "character",
    target_tokens: options.TargetTokens = None,
    stress: options.Stress = False,
    min_count: options.MinCount = 1,
    network: options.Network = "gru",
    width: options.Width = 128,
    layers: options.Layers = 1,
    dropout: options.Dropout = 0.0,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = 128,
    learning_rate: options.LearningRate = 3e-3,
    validation: Annotated[
        float, typer.Option("--validation", min=0.0, max=0.9, help="Share of sources kept for validation.")
    ] = 0.1,
    logger: Annotated[str | None, typer.Option("--logger", help="csv, tensorboard or mlflow.")] = None,
    seed: Seed = 0,
    threads: Threads = None,
    device: Device = "auto",
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Train on pairs of texts, and write a model folder.

    The loss shown is the negative log-likelihood of the right targets, whatever the objective, so that models of different
    objectives and temperatures can be compared. An interrupted run keeps its checkpoints in OUT/checkpoints; the same
    command with --resume goes on. A model that is in OUT already is replaced when the new one is done.
    """
    from tenfold.console.tables import show_record
    from tenfold.console.terminal import remark
    from tenfold.errors import InputError
    from tenfold.raml.data import read_pairs
    from tenfold.raml.model import Seq2SeqModel
    from tenfold.runtime import set_threads
    from tenfold.training import clear_checkpoints

    set_threads(threads)
    target_tokens = options.target_kind(target_tokens, pairs)
    options.check_kinds(source_tokens, target_tokens)
    if last_tau is not None and steps is None:
        raise InputError("--last-tau needs --steps: it says when that temperature is reached")
    replaced = Seq2SeqModel.check_folder(out)  # before the work, not after it
    read = read_pairs(pairs, stress=stress)
    from tenfold.raml.temperature import linear_schedule
    from tenfold.raml.training import fit_pairs

    checkpoints = out / "checkpoints"
    if replaced:
        remark(f"{out} holds {replaced}, which the new model replaces when it is done")
    model, reached = fit_pairs(
        read,
        objective=objective,
        tau=tau,
        schedule=None if last_tau is None or steps is None else linear_schedule(tau, last_tau, steps),
        scale=scale,
        payoff=payoff,
        samples=samples,
        smoothing=smoothing,
        candidates=candidates,
        sharpness=sharpness,
        warm_share=warm_share,
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        min_count=min_count,
        network=network,
        width=width,
        layers=layers,
        dropout=dropout,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        validation=validation,
        seed=seed,
        device=device,
        logger=logger,
        log_dir=out / "logs" if logger else None,
        checkpoint_dir=checkpoints,
        resume=resume,
        description=f"fitting {pairs.name}",
    )
    model.save_pretrained(out)
    clear_checkpoints(checkpoints)
    with suppress(OSError):  # somebody's file is in it
        checkpoints.rmdir()
    labels = {
        "loss": "training loss [nats a token]",
        "val_loss": "validation loss [nats a token]",
        "val_error_rate": "validation error rate [%]",
    }
    shown = {name: 100 * value if name == "val_error_rate" and not json else value for name, value in reached.items()}
    show_record(
        f"Model in {out}",
        {
            "model": str(out),
            "pairs": len(read),
            "objective": objective,
            **({"tau": tau, "scale": scale} if objective == "raml" else {}),
            "source tokens": len(model.source_vocabulary.tokens),
            "target tokens": len(model.target_vocabulary.tokens),
            **({"replaced": replaced} if replaced else {}),
            **{name if json else labels[name]: value for name, value in shown.items()},
        },
        json=json,
    )


@app.command()
def predict(
    model: options.Model,
    sources: Annotated[Path, typer.Argument(help="Sources, one a line; of pairs, the first column.")],
    out: Out = Path("predictions.tsv"),
    beam: options.Beam = 5,
    length_penalty: Annotated[
        float, typer.Option("--length-penalty", min=0.0, help="Exponent of the length that scores are divided by.")
    ] = 1.0,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=1, help="Most tokens of an output.", show_default="the model's own"),
    ] = None,
    threads: Threads = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Write the model's output for each source, with its score in nats, as a table (.tsv, .csv, .parquet)."""
    import numpy as np

    from tenfold.console.tables import show_record
    from tenfold.files import write_table
    from tenfold.raml.data import read_sources
    from tenfold.raml.model import Seq2SeqModel
    from tenfold.runtime import choose_device, set_threads

    set_threads(threads)
    options.keep_input(out, sources)
    loaded = Seq2SeqModel.from_pretrained(model).to(choose_device(device))
    texts, lines = read_sources(sources)
    found = loaded.predict(
        texts, beam_size=beam, length_penalty=length_penalty, max_length=max_length, path=sources, lines=lines
    )
    write_table(
        out,
        {
            "source": np.array(texts),
            "output": np.array([one.text for one in found]),
            "score": np.array([one.score for one in found]),
        },
    )
    show_record(f"{len(found)} outputs in {out}", {"out": str(out), "outputs": len(found)}, json=json)


@app.command()
def evaluate(
    model: options.Model,
    pairs: options.PairsFile,
    beam: options.Beam = 5,
    stress: options.Stress = False,
    replicates: Annotated[int, typer.Option("--replicates", min=0, help="Resamplings for the intervals.")] = 1000,
    seed: Seed = 0,
    threads: Threads = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Error rates and BLEU of the model's outputs, with 95 % intervals of a bootstrap over the sources.

    A source that is there several times has several right answers, of which the closest counts. Words are what white space
    separates; 'wrong outputs' are those that differ from every right answer at all.
    """
    from tenfold.console.tables import show_table
    from tenfold.console.terminal import remark
    from tenfold.raml.comparison import judge
    from tenfold.raml.data import read_pairs
    from tenfold.raml.model import Seq2SeqModel
    from tenfold.runtime import choose_device, set_threads

    set_threads(threads)
    loaded = Seq2SeqModel.from_pretrained(model).to(choose_device(device))
    read = read_pairs(pairs, stress=stress)
    strange = len(read) - options.known_targets(read, loaded.target_tokens, loaded.target_vocabulary.tokens)
    if strange:
        remark(f"{strange} of {len(read)} targets have a token that the model cannot put out")
    found, count = judge(loaded, read, beam_size=beam, replicates=replicates, seed=seed)
    labels = {
        "error_rate": "token error rate [%]",
        "word_error_rate": "word error rate [%]",
        "wrong": "wrong outputs [%]",
        "bleu": "BLEU [0 to 100]",
    }
    rows = [
        [name, *score] if json else [labels[name], *(value * (1 if name == "bleu" else 100) for value in score)]
        for name, score in found.items()
    ]
    show_table(f"{count} sources", ["score", "value", "low", "high"], rows, json=json)


@app.command()
def augment(
    targets: Annotated[Path, typer.Argument(help="Targets, one a line; of pairs and dictionaries, the second column.")],
    out: Out = Path("samples.tsv"),
    tau: Annotated[
        float | None,
        typer.Option("--tau", min=0.0, help="Temperature of the payoff.", show_default="0.7, without --error-rate"),
    ] = None,
    error_rate: Annotated[
        float | None, typer.Option("--error-rate", min=0.0, help="Mean edits a token, instead of a temperature.")
    ] = None,
    scale: options.Scale = "paper",
    payoff: options.Payoff = "edit",
    operations: Annotated[
        str, typer.Option("--operations", help="Edits that are allowed: some of substitute, insert, delete, by commas.")
    ] = "substitute,insert,delete",
    max_edits: Annotated[
        int | None,
        typer.Option("--max-edits", min=0, help="Only samples within that distance.", show_default="no limit"),
    ] = None,
    samples: options.Samples = 1,
    tokens: options.Tokens = None,
    stress: options.Stress = False,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Draw samples of the payoff distribution for each target, and write them with distance and log q.

    The table (.tsv, .csv, .parquet) has a header; log q is the natural logarithm of the sample's probability. The alphabet
    is that of the file's own tokens. A line's samples depend on the seed and the line's number.
    """
    from tenfold.console.tables import show_record
    from tenfold.files import write_table
    from tenfold.raml.augmentation import augment as draw
    from tenfold.raml.augmentation import read_targets
    from tenfold.runtime import set_threads

    set_threads(threads)
    options.keep_input(out, targets)
    kind = options.target_kind(tokens, targets)
    options.check_kinds("character", kind)
    read, with_sources = read_targets(targets, stress=stress)
    made = draw(
        read,
        kind,
        samples=samples,
        seed=seed,
        with_sources=with_sources,
        kind=payoff,
        tau=0.7 if tau is None and error_rate is None else tau,
        error_rate=error_rate,
        scale=scale,
        operations=tuple(operation.strip() for operation in operations.split(",")),
        max_edits=max_edits,
    )
    write_table(out, made.columns)
    distance = made.columns["distance"]
    show_record(
        f"{len(distance)} samples in {out}",
        {
            "out": str(out),
            "targets": len(read),
            "samples": len(distance),
            "alphabet": made.alphabet,
            "tau": made.payoff.tau,
            "scale": made.payoff.scale,
            "raw tau": made.payoff.raw_tau,
            "mean edits": float(distance.mean()),
            "edits a token": float(distance.mean() * len(read) / made.tokens),
            "unchanged share": float((distance == 0).mean()),
        },
        json=json,
    )


@app.command()
def compare(
    pairs: options.PairsFile,
    out: Out = Path("comparison"),
    test: Annotated[
        Path | None, typer.Option("--test", help="Pairs to judge by.", show_default="a share of PAIRS")
    ] = None,
    test_share: Annotated[
        float, typer.Option("--test-share", min=0.0, max=0.9, help="Share of sources to judge by, without --test.")
    ] = 0.1,
    objectives: Annotated[str, typer.Option("--objectives", help="Some of ml, raml, smoothing, risk, by commas.")] = (
        "ml,smoothing,raml"
    ),
    taus: Annotated[str, typer.Option("--taus", help="Temperatures of raml, by commas.")] = "0.6,0.7,0.8",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each.")] = 3,
    scale: options.Scale = "paper",
    payoff: options.Payoff = "edit",
    samples: options.Samples = 1,
    smoothing: options.Smoothing = 0.1,
    candidates: options.Candidates = 8,
    sharpness: options.Sharpness = 1.0,
    warm_share: options.WarmShare = 0.5,
    source_tokens: options.SourceTokens = "character",
    target_tokens: options.TargetTokens = None,
    stress: options.Stress = False,
    min_count: options.MinCount = 1,
    network: options.Network = "gru",
    width: options.Width = 128,
    layers: options.Layers = 1,
    dropout: options.Dropout = 0.0,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = 128,
    learning_rate: options.LearningRate = 3e-3,
    beam: options.Beam = 1,
    seed: Seed = 0,
    threads: Threads = None,
    device: Device = "auto",
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Train by several objectives, temperatures and seeds, and judge all on pairs that none has seen.

    OUT gets comparison.csv (a line a run), comparison.png, and a file for each finished run, with which the same command
    and --resume goes on. The table has means over the seeds, with 95 % t intervals of the error rate.
    """
    from tenfold.console.progress import progress
    from tenfold.console.tables import show_table
    from tenfold.raml.comparison import Run, held_out, planned, summary, write_comparison
    from tenfold.raml.comparison import compare as run_all
    from tenfold.raml.data import read_pairs
    from tenfold.raml.pictures import draw_comparison
    from tenfold.runtime import set_threads

    set_threads(threads)
    target_tokens = options.target_kind(target_tokens, pairs)
    options.check_kinds(source_tokens, target_tokens)
    names = [name.strip() for name in objectives.split(",") if name.strip()]
    runs = planned(names, options.many_numbers("--taus", taus), seeds, seed)
    known = read_pairs(pairs, stress=stress)
    if test is None:
        known, judged = held_out(known, test_share, seed)
    else:
        judged = read_pairs(test, stress=stress)
    with progress("comparing", len(runs)) as display:

        def tell(run: Run, numbers: dict[str, float]) -> None:
            display.advance(1, error_rate=numbers["error_rate"])

        results = run_all(
            known,
            judged,
            runs,
            folder=out,
            resume=resume,
            beam_size=beam,
            on_run=tell,
            scale=scale,
            payoff=payoff,
            samples=samples,
            smoothing=smoothing,
            candidates=candidates,
            sharpness=sharpness,
            warm_share=warm_share,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            min_count=min_count,
            network=network,
            width=width,
            layers=layers,
            dropout=dropout,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            validation=0.0,
            device=device,
        )
    write_comparison(results, out)
    draw_comparison(results, out / "comparison.png")
    show_table(
        f"{len(results)} runs in {out}, {len(judged)} pairs to judge by", *summary(results, percent=not json), json=json
    )
