"""The command ``tenfold normalization``: which normalization for my data and network, and what can be done to a trained one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tenfold.console.options import Device, Json, Out, Resume, Seed, Threads
from tenfold.normalization.command_options import (
    BatchSize,
    Build,
    Checkpoint,
    Classes,
    Data,
    Dataset,
    Grayscale,
    Label,
    Mean,
    Size,
    Std,
    Weights,
)

app = typer.Typer(
    no_args_is_help=True,
    help="Study batch, group, layer and instance normalization; diagnose, re-estimate, fold and convert trained networks.",
)


@app.command()
def study(
    data: Annotated[
        str | None,
        typer.Argument(
            help="Folder of images with a sub-folder a class, table with a column of classes, or .npz.",
            show_default=False,
        ),
    ] = None,
    dataset: Dataset = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="small-conv, resnet, mlp, or a function of your own, net.py:build; auto is small-conv for images and mlp "
            "for tables.",
        ),
    ] = "auto",
    norms: Annotated[
        str | None,
        typer.Option(
            "--norms",
            help="Of batch, group, layer, instance and none, with commas.",
            show_default="batch,group,layer,instance; for tables without instance",
        ),
    ] = None,
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", help="Samples, with commas.")] = "2,4,8,16,32",
    real_batch: Annotated[
        bool,
        typer.Option(
            "--real-batch",
            help="Take so many samples a step, and train everything at each size; otherwise, as in the paper, steps have the "
            "largest size, and batch normalization's statistics are taken over parts of it.",
        ),
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each kind; three or more for advice.")] = 3,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", min=1, help="Passes over the data.", show_default="as many as make 450 steps, at least 2"
        ),
    ] = None,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", help="For a step of 32; in proportion for others.")
    ] = 0.1,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of each class to test on, another for each seed.")
    ] = 0.2,
    channels_per_group: Annotated[int, typer.Option("--channels-per-group", min=1, help="Of group normalization.")] = 8,
    label: Label = None,
    size: Size = None,
    grayscale: Grayscale = False,
    out: Out = Path("study"),
    seed: Seed = 0,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="CPU threads; small networks gain nothing from more.")
    ] = 1,
    device: Device = "cpu",
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Error by normalization and batch size on your data: a table, two pictures, and advice that follows from the numbers.

    Every finished run is kept in OUT; the same command with --resume goes on, also with more seeds, norms or sizes.
    """
    from tenfold.console.progress import clock, progress
    from tenfold.console.tables import show_record, show_table
    from tenfold.console.terminal import remark
    from tenfold.errors import InputError
    from tenfold.normalization import data as reading
    from tenfold.normalization.command_inputs import model_of, whole_numbers, write_paragraphs
    from tenfold.normalization.study import Plan, norm_study
    from tenfold.normalization.study_folder import write_study
    from tenfold.runtime import choose_device, set_threads

    if (data is None) == (dataset is None):
        raise InputError("give either DATA, a file or folder, or --dataset with digits, mnist_5k or mnist")
    chosen = None if norms is None else [name.strip() for name in norms.split(",") if name.strip()]
    sizes = whole_numbers(batch_sizes, "--batch-sizes", "2,4,8,16,32")
    count = set_threads(threads)
    build, name = model_of(model)
    if dataset is not None:
        examples = reading.dataset(dataset, size=size)
    else:
        examples = reading.read_labelled(data or "", label=label, size=size, grayscale=grayscale)
    with progress(f"study of {examples.name}") as display:

        def announce(plan: Plan) -> None:
            display.update(total=plan.steps)
            done = f" ({plan.done} done before)" if plan.done else ""
            s = "" if count == 1 else "s"
            remark(f"{plan.runs} runs{done}, {plan.steps:,} steps: about {clock(plan.seconds)} on {count} thread{s}")

        table = norm_study(
            examples,
            build,
            norms=chosen,
            batch_sizes=sizes,
            seeds=seeds,
            seed=seed,
            epochs=epochs,
            learning_rate=learning_rate,
            real_batch=real_batch,
            held_out=held_out,
            channels_per_group=channels_per_group,
            device=str(choose_device(device)),
            model_name=name,
            out=out,
            resume=resume,
            on_plan=announce,
            on_progress=display.advance,
        )
    written = write_study(table, out)
    if json:
        show_record("Study", {**table.to_dict(), "files": [str(path) for path in written]}, json=True)
        return
    show_table(
        f"Error in the test part [%], mean and half of the 95 % interval over {seeds} seeds",
        ["norm", *(str(size) for size in table.batch_sizes)],
        table.rows(),
    )
    shown = "".join(str(cell) for row in table.rows() for cell in row)
    marks = {"*": "* the loss of a run was not finite", "!": "! a run could not be trained"}
    notes = [text for mark, text in marks.items() if mark in shown]
    write_paragraphs(*notes, table.advice(), ", ".join(str(path) for path in written))


@app.command()
def diagnose(
    checkpoint: Checkpoint,
    build: Build,
    data: Data = None,
    dataset: Dataset = None,
    batch_size: BatchSize = 32,
    classes: Classes = None,
    label: Label = None,
    size: Size = None,
    grayscale: Grayscale = False,
    mean: Mean = None,
    std: Std = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Picture to write: .png, .svg or .pdf.", show_default=False)
    ] = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Where the network acts differently in training and in evaluation, layer by layer, and why."""
    from tenfold.console.tables import show_record, show_table
    from tenfold.normalization.command_inputs import network_of, read_examples, write_paragraphs
    from tenfold.normalization.diagnosis import diagnose as compare
    from tenfold.normalization.study_pictures import check_picture_path
    from tenfold.runtime import set_threads

    if out is not None:
        check_picture_path(out)
    set_threads(threads)
    network = network_of(checkpoint, build, classes)
    found = compare(network, read_examples(data, dataset, label, size, grayscale, mean, std).split(batch_size))
    if out is not None:
        found.plot(out)
    if json:
        show_record("Diagnosis", {"layers": found.to_frame().to_dicts(), "findings": found.findings}, json=True)
        return
    show_table(
        f"{len(found.rows)} layers, {found.samples:,} examples, in standard deviations",
        ["layer", "kind", "channels", "gap", "drift", "batch noise", "dead channels"],
        [
            [row.name, row.kind, row.channels, row.gap, row.drift, row.batch_noise, len(row.dead_channels)]
            for row in found.rows
        ],
    )
    write_paragraphs(*(found.findings or ["No findings."]))


@app.command()
def reestimate(
    checkpoint: Checkpoint,
    build: Build,
    data: Data = None,
    dataset: Dataset = None,
    batch_size: BatchSize = 256,
    classes: Classes = None,
    label: Label = None,
    size: Size = None,
    grayscale: Grayscale = False,
    mean: Mean = None,
    std: Std = None,
    out: Weights = Path("reestimated.safetensors"),
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Set running statistics to the exact moments of the data, and write the weights."""
    from tenfold.console.tables import show_table
    from tenfold.normalization.command_inputs import prepared_network, read_examples
    from tenfold.normalization.model_files import save_weights
    from tenfold.normalization.reestimation import reestimate as measure

    network = prepared_network(checkpoint, build, classes, out, threads)
    report = measure(network, read_examples(data, dataset, label, size, grayscale, mean, std).split(batch_size)).report
    save_weights(network, out)
    show_table(
        f"Statistics of {len(report.layers)} layers from {report.samples:,} examples in {out}",
        ["layer", "values a channel", "mean shift [std]", "variance ratio"],
        [[layer.name, layer.values, layer.mean_shift, layer.variance_ratio] for layer in report.layers],
        json=json,
    )


@app.command()
def fold(
    checkpoint: Checkpoint,
    build: Build,
    data: Data = None,
    dataset: Dataset = None,
    classes: Classes = None,
    label: Label = None,
    size: Size = None,
    grayscale: Grayscale = False,
    mean: Mean = None,
    std: Std = None,
    out: Weights = Path("folded.safetensors"),
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Fold batch normalization into the layers before it, for inference; with data, the change of the output is measured.

    The weights fit 'fold(build()).model' of tenfold.normalization.
    """
    from tenfold.console.tables import show_record
    from tenfold.normalization.command_inputs import prepared_network, read_examples
    from tenfold.normalization.folding import fold as fold_network
    from tenfold.normalization.model_files import save_weights

    network = prepared_network(checkpoint, build, classes, out, threads)
    given = data is not None or dataset is not None
    example = read_examples(data, dataset, label, size, grayscale, mean, std)[:256] if given else None
    result = fold_network(network.eval(), example)
    save_weights(result.model, out)
    report = result.report
    show_record(
        f"Folded weights in {out}",
        {
            "out": str(out),
            "folded": [f"{norm} into {layer}" for norm, layer in report.folded],
            "kept": [f"{norm}: {reason}" for norm, reason in report.kept],
            "largest change of the output": report.output_change,
            **({"notes": list(report.notes)} if report.notes else {}),
        },
        json=json,
    )


@app.command()
def convert(
    checkpoint: Checkpoint,
    build: Build,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="group, layer, instance, batch, fused, frozen, ghost, renorm or cross_process.",
            show_default=False,
        ),
    ],
    groups: Annotated[
        int | None,
        typer.Option("--groups", min=1, help="For --to group.", show_default="32, or fewer where 32 does not divide"),
    ] = None,
    channels_per_group: Annotated[
        int | None, typer.Option("--channels-per-group", min=1, help="Instead of --groups.", show_default=False)
    ] = None,
    virtual_batch_size: Annotated[
        int | None, typer.Option("--virtual-batch-size", min=1, help="For --to ghost.", show_default=False)
    ] = None,
    data: Data = None,
    dataset: Dataset = None,
    classes: Classes = None,
    label: Label = None,
    size: Size = None,
    grayscale: Grayscale = False,
    mean: Mean = None,
    std: Std = None,
    out: Weights = Path("converted.safetensors"),
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Put another normalization in the place of each one; with data, gamma and beta are calibrated and the change measured.

    The weights fit 'convert(build(), to=...).model' of tenfold.normalization.
    """
    from tenfold.console.tables import show_record
    from tenfold.normalization.command_inputs import prepared_network, read_examples
    from tenfold.normalization.conversion import convert as convert_network
    from tenfold.normalization.model_files import save_weights

    network = prepared_network(checkpoint, build, classes, out, threads)
    given = data is not None or dataset is not None
    calibration = read_examples(data, dataset, label, size, grayscale, mean, std).split(256) if given else None
    options: dict[str, Any] = {} if virtual_batch_size is None else {"virtual_batch_size": virtual_batch_size}
    result = convert_network(network, to, calibration, groups=groups, channels_per_group=channels_per_group, **options)
    save_weights(result.model, out)
    report = result.report
    show_record(
        f"Converted weights in {out}",
        {
            "out": str(out),
            "replaced": [f"{layer.name}: {layer.before} -> {layer.after}" for layer in report.layers],
            "change of the output": report.output_change,
            "change without calibration": report.uncalibrated_change,
            "needs fine-tuning": report.needs_fine_tuning,
            **({"notes": list(report.notes)} if report.notes else {}),
        },
        json=json,
    )
