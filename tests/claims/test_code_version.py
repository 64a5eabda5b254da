import importlib
import sys

import pytest

from tenfold.claims import code_version


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package ``experiment`` on the path, with a measurement that uses a module beside it."""
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "claims.py").write_text(
        "from tenfold.claims import Measurement\n\n"
        "def measure(seed, scale):\n    from experiment.method import half\n    return Measurement({'half': half()})\n"
    )
    (folder / "method.py").write_text("from . import constants\n\ndef half():\n    return constants.HALF\n")
    (folder / "constants.py").write_text("HALF = 0.5\n")
    (folder / "unrelated.py").write_text("NOTHING = 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "experiment"]:
        del sys.modules[name]


def version(measure):
    for cached in (code_version._version_of_module, code_version._closure):
        cached.cache_clear()
    return code_version.code_version(measure)


@pytest.mark.parametrize(
    ("file", "matters"),
    [("claims.py", True), ("method.py", True), ("constants.py", True), ("__init__.py", True), ("unrelated.py", False)],
)
def test_the_version_follows_the_sources_that_a_measurement_reaches(package, file, matters):
    measure = importlib.import_module("experiment.claims").measure
    before = version(measure)
    assert version(measure) == before
    (package / file).write_text((package / file).read_text() + "\n# another thought\n")
    assert (version(measure) != before) is matters


def test_an_area_counts_with_all_its_files_but_neither_its_command_nor_the_claims_machinery():
    files, imported = code_version._closure("tenfold.mixture.claims")
    assert "tenfold/mixture/__init__.py" in files
    assert "tenfold/mixture/kernels.py" in files
    assert "tenfold/mixture/cli.py" not in files
    assert not [name for name in files if name.startswith(("tenfold/claims/", "tenfold/console/"))]
    assert "torch" in imported


def test_versions_name_the_libraries_by_their_distribution():
    versions = dict(code_version._libraries(frozenset({"sklearn", "PIL", "json", "not_installed_anywhere"})))
    assert {"scikit-learn", "pillow", "torch", "numpy", "python"} <= set(versions)
    assert not {"json", "not_installed_anywhere"} & set(versions)
