"""``tenfold doctor``: what runs here, what is missing, and what is wrong; the first thing to attach to a report."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import typer

from tenfold import __version__
from tenfold.console.options import Json
from tenfold.console.tables import plain_value, show_record, show_table, write_json

app = typer.Typer()

REQUIREMENT = re.compile(
    r"(?P<package>[\w.-]+)(\[[^]]*\])?\s*(?P<bounds>[^;]*)(;.*extra == ['\"](?P<extra>[\w-]+)['\"])?"
)
COLLECTIONS = {"all"}  # extras that only gather other extras


@app.command()
def doctor(json: Json = False) -> None:
    """Show versions, machine, threads, extras and the data cache; leave with 1 if something is missing or broken."""
    packages, extras = required_packages()
    machine, machine_problems = inspect_machine()
    data, data_problems = inspect_data()
    problems = [*package_problems(packages), *machine_problems, *data_problems]
    tenfold = {"version": __version__, "python": platform.python_version(), "folder": str(Path(__file__).parents[1])}
    if json:
        write_json(
            plain_value(
                {
                    "tenfold": tenfold,
                    "machine": machine,
                    "packages": {name: installed(name) for name in packages},
                    "extras": {extra: {name: installed(name) for name in names} for extra, names in extras.items()},
                    "data": data,
                    "problems": problems,
                }
            )
        )
    else:
        show_record("Tenfold", tenfold)
        separate()
        versions = {"tenfold", "python", *packages}  # shown above and below
        show_record("Machine", {name: value for name, value in machine.items() if name not in versions})
        separate()
        show_table("Packages", ["package", "installed", "needed"], [[n, installed(n), b] for n, b in packages.items()])
        separate()
        show_table("Extras", ["extra", "state", "packages"], [extra_row(*item) for item in extras.items()])
        separate()
        show_record("Data", {name: value for name, value in data.items() if name != "bytes"})
        separate()
        show_record("Verdict", {"problems": problems or "none"})
    if problems:
        raise typer.Exit(1)


def separate() -> None:
    """An empty line between two sections."""
    sys.stdout.write("\n")


def required_packages() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The packages that Tenfold's metadata names, with version bounds: those always needed, and those of each extra."""
    always: dict[str, str] = {}
    extras: dict[str, dict[str, str]] = {}
    try:
        lines = requires("tenfold") or []
    except PackageNotFoundError:  # run from a source tree that is not installed
        return always, extras
    for line in lines:
        found = REQUIREMENT.match(line)
        if found is None or found["extra"] in COLLECTIONS:
            continue
        group = always if found["extra"] is None else extras.setdefault(found["extra"], {})
        group[found["package"]] = found["bounds"].strip()
    return dict(sorted(always.items())), {extra: dict(sorted(names.items())) for extra, names in sorted(extras.items())}


def installed(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def package_problems(packages: dict[str, str]) -> list[str]:
    """Which of the needed packages are missing or too old."""
    problems = []
    for package, bounds in packages.items():
        found = installed(package)
        if found is None:
            problems.append(f"{package} is not installed: pip install '{package}{bounds}'")
        elif is_older(found, bounds):
            problems.append(f"{package} {found} is too old: pip install '{package}{bounds}'")
    return problems


def is_older(found: str, bounds: str) -> bool:
    """Whether a version lies below the lower bound, of which there is at most one.

    >>> is_older("2.9.1+cpu", ">=2.10"), is_older("2.10", ">=2.10"), is_older("1.0", "")
    (True, False, False)
    """
    least = re.search(r">=\s*([\d.]+)", bounds)
    return least is not None and release(found) < release(least[1])


def release(text: str) -> tuple[int, ...]:
    """The numbers of a version.

    >>> release("2.13.0+cpu"), release("1.15")
    ((2, 13), (1, 15))
    """
    numbers = re.match(r"\d+(\.\d+)*", text)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def inspect_machine() -> tuple[dict[str, object], list[str]]:
    """What :func:`tenfold.runtime.describe_machine` says, or why it cannot say it."""
    try:
        from tenfold.runtime import describe_machine

        return dict(describe_machine()), []
    except (ImportError, OSError) as error:  # a broken installation of torch or numpy raises either
        return {"system": platform.platform(), "cpus": os.cpu_count()}, [does_not_load("tenfold.runtime", error)]


def inspect_data() -> tuple[dict[str, object], list[str]]:
    """Where fetched data lies, how much there is, and whether more can be written."""
    given = os.environ.get("TENFOLD_DATA")
    try:
        from tenfold.datasets import cache_folder
    except (ImportError, OSError) as error:
        return {"TENFOLD_DATA": given}, [does_not_load("tenfold.datasets", error)]
    folder = cache_folder()
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK)
    problems = (
        [] if writable else [f"data cannot be saved in {folder}: set TENFOLD_CACHE to a folder that can be written"]
    )
    if given and not Path(given).expanduser().is_dir():
        problems.append(f"TENFOLD_DATA={given} is no folder")
    data: dict[str, object] = {
        "cache": str(folder),
        "files": len(files),
        "size": size_text(size),
        "bytes": size,
        "writable": writable,
        "TENFOLD_DATA": given,
    }
    return data, problems


def does_not_load(module: str, error: Exception) -> str:
    """One line on a module that cannot be imported."""
    return f"{module} does not load: {type(error).__name__}: {' '.join(str(error).split())}"


def extra_row(extra: str, packages: dict[str, str]) -> list[object]:
    """Extra, whether it is installed, and its packages with their versions."""
    versions = {name: installed(name) for name in packages}
    missing = [name for name, found in versions.items() if found is None]
    state = "installed" if not missing else f"pip install 'tenfold[{extra}]'"
    return [extra, state, ", ".join(f"{name} {found or 'missing'}" for name, found in versions.items())]


def size_text(size: int) -> str:
    """Bytes as people read them.

    >>> size_text(512), size_text(11_594_722)
    ('512 bytes', '11.6 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    factor, unit = next(((f, u) for f, u in ((1e9, "GB"), (1e6, "MB")) if size >= f), (1e3, "kB"))
    return f"{size / factor:.1f} {unit}"
