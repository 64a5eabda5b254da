import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tenfold import __version__
from tenfold.console import doctor


def test_doctor_finds_no_problem_here(shell: SimpleNamespace, tmp_path: Path) -> None:
    ran = shell.piped("doctor", TENFOLD_CACHE=str(tmp_path))
    assert ran.stderr == ""
    assert ran.returncode == 0
    assert f"version  {__version__}" in ran.stdout
    assert "problems  none" in ran.stdout
    assert str(tmp_path) in ran.stdout
    assert ran.stdout.isascii()


def test_doctor_answers_in_json_with_versions_machine_extras_and_data(shell: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "datasets" / "set").mkdir(parents=True)
    (tmp_path / "datasets" / "set" / "rows.csv").write_bytes(b"x" * 1234)
    answer = json.loads(shell.piped("doctor", "--json", TENFOLD_CACHE=str(tmp_path)).stdout)
    assert answer["tenfold"]["version"] == __version__
    assert answer["problems"] == []
    assert answer["packages"]["torch"]
    assert set(answer["extras"]) >= {"elmo", "federated", "ray", "test"}
    assert answer["machine"]
    assert answer["data"]["cache"] == str(tmp_path / "datasets")
    assert (answer["data"]["files"], answer["data"]["bytes"], answer["data"]["writable"]) == (1, 1234, True)


def test_doctor_names_a_data_folder_that_cannot_be_made(shell: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    ran = shell.piped("doctor", TENFOLD_CACHE=str(tmp_path / "file" / "below"))
    assert ran.returncode == 1
    assert "data cannot be saved in" in ran.stdout


def test_doctor_names_a_data_variable_that_points_nowhere(shell: SimpleNamespace, tmp_path: Path) -> None:
    ran = shell.piped("doctor", TENFOLD_CACHE=str(tmp_path), TENFOLD_DATA=str(tmp_path / "nowhere"))
    assert ran.returncode == 1
    assert f"TENFOLD_DATA={tmp_path / 'nowhere'} is no folder" in ran.stdout


def test_a_missing_and_an_old_package_are_problems() -> None:
    missing, old = doctor.package_problems({"no-such-package": ">=1.0", "typer": ">=999.1"})
    assert missing == "no-such-package is not installed: pip install 'no-such-package>=1.0'"
    assert "is too old: pip install 'typer>=999.1'" in old


@pytest.mark.parametrize("width", [40, 100])
def test_doctor_fits_the_terminal(shell: SimpleNamespace, width: int, tmp_path: Path) -> None:
    text, code = shell.at_terminal("doctor", width=width, TENFOLD_CACHE=str(tmp_path))
    assert code == 0
    assert max(map(len, shell.without_style(text).splitlines())) <= width
