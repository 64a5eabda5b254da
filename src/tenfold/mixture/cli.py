"""The command ``tenfold mixture``: train an autoencoder with a mixture posterior on a table or images, and use it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenfold.console.options import Device, Json, Out, Resume, Seed, Threads

if TYPE_CHECKING:
    from tenfold.mixture.data import Features
    from tenfold.mixture.vae import MixtureVAE

PARTS = {"bound": "training", "val_bound": "validation"}

app = typer.Typer(no_args_is_help=True, help="A VAE whose posterior is a mixture: fit, embed, sample, evaluate, plot.")

Data = Annotated[
    str, typer.Argument(help="Table (.csv, .tsv, .parquet, .npy, .npz) or images (folder, or 3-D/4-D .npy, .npz).")
]
Model = Annotated[Path, typer.Argument(help="Model folder, as written by 'fit'.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns", metavar="NAMES", help="Columns of the table to use, such as age,height; the model keeps them."
    ),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="NAMES", help="Columns of the table to leave out.")
]
Size = Annotated[int | None, typer.Option("--size", min=1, help="Scale and cut images to this height and width.")]
Grayscale = Annotated[bool, typer.Option("--grayscale", help="Read images with one channel.")]
White = Annotated[
    int | None,
    typer.Option(
        "--white", min=1, max=255, help="Value of white in arrays of whole numbers, such as 16.", show_default="255"
    ),
]
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@app.command()
def fit(
    data: Data,
    out: Out = Path("model"),
    columns: Columns = None,
    exclude: Exclude = None,
    components: Annotated[
        int, typer.Option("--components", "-k", min=1, help="Components of the posterior; 1 is a plain VAE.")
    ] = 4,
    latent: Annotated[int, typer.Option("--latent", "-d", min=1, help="Length of a code.")] = 2,
    hidden: Annotated[
        str | None,
        typer.Option(
            "--hidden",
            help="Widths of the encoder's hidden layers, comma-separated.",
            show_default="64,32; from 64 features on 256,128",
        ),
    ] = None,
    likelihood: Annotated[
        str, typer.Option("--likelihood", help="auto, bernoulli (values from 0 to 1) or gaussian.")
    ] = "auto",
    objective: Annotated[
        str, typer.Option("--objective", help="elbo or stratified (keeps all components in use).")
    ] = "elbo",
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="Samples a row and step: of the mixture, or of each component.")
    ] = 4,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            min=1,
            help="Passes over the data.",
            show_default="as many as make 2,000 steps, at least 20",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows a step.")] = 128,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Adam's, at the start.")] = 3e-3,
    validation: Annotated[
        float, typer.Option("--validation", min=0.0, max=0.9, help="Share of rows kept for validation.")
    ] = 0.1,
    size: Size = None,
    grayscale: Grayscale = False,
    white: White = None,
    precision: Annotated[
        str, typer.Option("--precision", help="32-true, bf16-mixed, 16-mixed or 64-true.")
    ] = "32-true",
    logger: Annotated[str | None, typer.Option("--logger", help="csv, tensorboard or mlflow.")] = None,
    seed: Seed = 0,
    threads: Threads = None,
    device: Device = "auto",
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Train on a table of numbers or on images, and write a model folder.

    The bounds shown are the objective's, on the rows of training and on those kept for validation. An interrupted run keeps
    its checkpoints in OUT/checkpoints; the same command with --resume goes on. A model that is in OUT already is replaced
    when the new one is done; in a folder of other files nothing is written.
    """
    from tenfold.console.tables import show_record
    from tenfold.console.terminal import remark
    from tenfold.errors import InputError
    from tenfold.mixture.data import read_features
    from tenfold.mixture.vae import MixtureVAE
    from tenfold.runtime import set_threads
    from tenfold.training import clear_checkpoints

    set_threads(threads)
    if precision not in PRECISIONS:
        raise InputError(f"--precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    widths = _widths(hidden)
    replaced = MixtureVAE.check_folder(out)  # before the work, not after it
    try:
        features = read_features(
            data, columns=_names(columns), exclude=_names(exclude), size=size, grayscale=grayscale, white=white
        )
    except InputError as error:
        if "numbers are needed" not in error.message:
            raise
        remedy = f"{error.message}; --exclude leaves columns out"
        raise InputError(remedy, path=error.path, line=error.line) from error
    from tenfold.mixture import training

    try:
        training.check_rows(len(features.values), validation)
    except ValueError as error:
        raise InputError(str(error), path=data) from None
    num_features = features.values.shape[1]
    widths = training.default_hidden(num_features) if widths is None else widths
    layers = [num_features, *widths, latent * components]
    if threads is None and not training.is_worth_threads(layers, batch_size * samples):
        set_threads(1)
    if likelihood == "auto":
        likelihood = "bernoulli" if features.binary_or_intensity else "gaussian"
    checkpoints = out / "checkpoints"

    if replaced:
        remark(f"{out} holds {replaced}, which the new model replaces when it is done")
    vae, bounds = training.fit(
        features.values,
        latent_dim=latent,
        num_components=components,
        hidden=widths,
        likelihood=likelihood,
        objective=objective,
        num_samples=samples,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        validation=validation,
        image_shape=features.image_shape,
        names=features.names,
        seed=seed,
        device=device,
        precision=precision,
        logger=logger,
        log_dir=out / "logs" if logger else None,
        checkpoint_dir=checkpoints,
        resume=resume,
        description=f"fitting {Path(data).name}",
    )
    bound = "ELBO" if objective == "elbo" else f"stratified bound, {samples} samples a component"
    vae.save_pretrained(out)
    clear_checkpoints(checkpoints)
    with suppress(OSError):  # somebody's file is in it
        checkpoints.rmdir()
    show_record(
        f"Model in {out}",
        {
            "model": str(out),
            "rows": len(features.values),
            "features": num_features,
            "likelihood": likelihood,
            "components": components,
            "latent": latent,
            **({"columns": list(features.names)} if features.names and (columns or exclude) else {}),
            **({"constant columns": list(features.constant)} if features.constant else {}),
            **({"replaced": replaced} if replaced else {}),
            **{name if json else f"{PARTS[name]} {bound} [nats a row]": value for name, value in bounds.items()},
        },
        json=json,
    )


@app.command()
def embed(
    model: Model,
    data: Data,
    out: Out = Path("codes.parquet"),
    grayscale: Grayscale = False,
    white: White = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Write each row's code, most probable component and component probabilities as a table (.parquet, .csv, .tsv).

    Images in sub-folders keep the sub-folder's name in the column 'label'.
    """
    import numpy as np

    from tenfold.console.tables import show_table
    from tenfold.files import write_table
    from tenfold.runtime import set_threads

    _keep_input(out, data)
    set_threads(threads)
    vae, features = _load(model, data, grayscale, white)
    codes, probs = (t.numpy() for t in vae.embed(features.values))
    best = probs.argmax(-1) + 1
    rows = np.array(features.rows) if features.image_shape else np.arange(1, len(best) + 1)
    labels = {} if features.labels is None else {"label": np.array(features.labels)}
    write_table(out, {"row": rows, **labels, "component": best, "code": codes, "probability": probs})
    counts = np.bincount(best, minlength=vae.num_components + 1)[1:]
    means = probs.mean(0)
    show_table(
        f"{len(best)} codes in {out}",
        ["component", "rows", "mean probability"],
        [[k + 1, int(counts[k]), float(means[k])] for k in range(vae.num_components)],
        json=json,
    )


@app.command()
def sample(
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Picture (.png) of images, or table (.csv, .parquet); samples.png or samples.csv.",
            show_default=False,
        ),
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=10_000, help="How many.")] = 64,
    means: Annotated[
        bool | None,
        typer.Option(
            "--means/--draws",
            help="Means of the features, or draws that have the data's spread.",
            show_default="means for images, draws for tables",
        ),
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Draw codes from the prior and write what they decode to: a grid of images, or a table."""
    from tenfold.console.tables import show_record
    from tenfold.errors import InputError
    from tenfold.files import write_table
    from tenfold.mixture.pictures import image_grid, write_picture
    from tenfold.mixture.vae import MixtureVAE
    from tenfold.runtime import set_threads
    from tenfold.training import seeded_generator

    set_threads(threads)
    vae = MixtureVAE.from_pretrained(model)
    target = out or Path("samples.png" if vae.image_shape else "samples.csv")
    picture = target.suffix.lower() == ".png"
    if picture and vae.image_shape is None:
        raise InputError("this model was trained on a table; give a .csv, .tsv or .parquet file", path=target)
    if vae.image_shape is not None and target.suffix.lower() not in (".png", ".csv", ".tsv", ".parquet"):
        raise InputError("samples are written as .png, .csv, .tsv or .parquet", path=target)
    mean = vae.image_shape is not None if means is None else means
    values = vae.sample(number, mean=mean, generator=seeded_generator(seed)).numpy()
    if picture and vae.image_shape is not None:
        write_picture(target, image_grid(values, vae.image_shape))
    else:
        names = vae.names or tuple(
            f"{'column' if vae.image_shape is None else 'pixel'}_{i + 1}" for i in range(vae.num_features)
        )
        write_table(target, {name: values[:, i] for i, name in enumerate(names)})
    show_record(f"{number} samples in {target}", {"out": str(target), "samples": number}, json=json)


@app.command()
def evaluate(
    model: Model,
    data: Data,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples a row.")] = 64,
    grayscale: Grayscale = False,
    white: White = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Bounds on the log likelihood of the data in nats a row, with standard errors.

    Of all rows of DATA alike, so that rows on which the model was trained look better than new ones. The importance bound
    and the stratified bound are tighter than the ELBO and rise with the samples; 'fit' reports the one that it trained on.
    """
    from tenfold.console.tables import show_table
    from tenfold.mixture.training import evaluate as measure
    from tenfold.runtime import set_threads

    set_threads(threads)
    vae, features = _load(model, data, grayscale, white)
    results = measure(vae, features.values, num_samples=samples, seed=seed)
    labels = {"elbo": "ELBO", "importance_bound": "importance bound", "stratified_bound": "stratified bound"}
    show_table(
        f"{len(features.values)} rows, {samples} samples each, nats a row",
        ["bound", "mean", "standard error"],
        [[name if json else labels[name], mean, error] for name, (mean, error) in results.items()],
        json=json,
    )


@app.command()
def plot(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture to write: .png, .svg or .pdf.")] = Path("map.png"),
    by: Annotated[
        str, typer.Option("--by", help="Colour by component, or by label (the sub-folder of an image).")
    ] = "component",
    grayscale: Grayscale = False,
    white: White = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Draw the latent map: each row at the mean of its most probable component, coloured by that component or its label."""
    from tenfold.console.tables import show_record
    from tenfold.errors import InputError
    from tenfold.mixture.pictures import latent_map
    from tenfold.runtime import set_threads

    _keep_input(out, data)
    set_threads(threads)
    if by not in ("component", "label"):
        raise InputError(f"--by {by!r} is neither component nor label")
    vae, features = _load(model, data, grayscale, white)
    if by == "label" and features.labels is None:
        raise InputError("has no labels; those are the sub-folders of a folder of images", path=data)
    codes, probs = (t.numpy() for t in vae.embed(features.values))
    latent_map(out, codes, probs, features.labels if by == "label" else None)
    show_record(f"Map of {len(codes)} rows in {out}", {"out": str(out), "rows": len(codes)}, json=json)


def _names(given: list[str] | None) -> list[str] | None:
    """Names separated by commas; a name that holds a comma is written in double quotes, as in CSV."""
    from csv import reader

    from tenfold.errors import InputError

    if not given:
        return None
    names = [name.strip() for cells in reader(given, skipinitialspace=True) for name in cells]
    if not all(names):
        raise InputError(f"{','.join(given)!r} holds an empty name; give names of columns separated by commas")
    return names


def _widths(given: str | None) -> tuple[int, ...] | None:
    """The widths that ``--hidden`` names."""
    from tenfold.errors import InputError

    try:
        return tuple(int(width) for width in given.split(",") if width.strip()) if given is not None else None
    except ValueError:
        raise InputError(f"--hidden {given!r} must be whole numbers separated by commas, such as 256,128") from None


def _load(model: Path, data: str, grayscale: bool, white: int | None) -> tuple[MixtureVAE, Features]:
    """The model, and data that fit it, in its precision."""
    from dataclasses import replace

    from tenfold.mixture.data import read_features_like
    from tenfold.mixture.vae import MixtureVAE

    vae = MixtureVAE.from_pretrained(model)
    features = read_features_like(
        data,
        num_features=vae.num_features,
        image_shape=vae.image_shape,
        names=vae.names,
        intensities=vae.likelihood == "bernoulli",
        grayscale=grayscale,
        white=white,
    )
    return vae, replace(features, values=features.values.to(vae.center.dtype))


def _keep_input(out: Path, data: str) -> None:
    """Refuse to write over what is about to be read."""
    from tenfold.errors import InputError
    from tenfold.files.arrays import split_member

    if out.exists() and out.samefile(split_member(data)[0]):
        raise InputError("this is the data that would be read; give --out another name", path=out)
