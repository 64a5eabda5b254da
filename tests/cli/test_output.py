import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tenfold.areas import AREAS
from tenfold.console.progress import progress
from tenfold.console.tables import show_record, show_table


def test_areas_in_a_pipe_are_one_line_each(shell: SimpleNamespace) -> None:
    ran = shell.piped("areas")
    header, *rows = ran.stdout.splitlines()
    assert ran.returncode == 0
    assert header.split("  ")[0] == "area"
    assert [row.split()[0] for row in rows] == [area.name for area in AREAS]
    assert AREAS[0].paper in rows[0]
    assert ran.stdout.isascii()


def test_areas_count_claims_and_an_area_whose_extra_is_missing_says_how_to_install_it(shell: SimpleNamespace) -> None:
    table, listed = shell.piped("areas", "--then", "areas", "--json", program=shell.probe).stdout.split("\f\n")
    assert "missing: pip install 'tenfold[probe]'" in table
    answer = json.loads(listed)
    assert [entry["area"] for entry in answer] == [*(area.name for area in AREAS), "probe"]
    assert answer[-1]["missing"] == ["package_of_the_probe"]
    assert answer[-1]["claims"] is None


def test_areas_fit_the_terminal(shell: SimpleNamespace) -> None:
    widths = [20, 40, 80, 200]
    words = " --then ".join(f"width={width} areas" for width in widths).split()
    text, code = shell.at_terminal(*words, program=shell.probe)
    assert code == 0
    for width, part in zip(widths, text.split("\f\n"), strict=True):
        assert "\x1b[" in part
        plain = shell.without_style(part)
        assert max(map(len, plain.splitlines())) <= width
        assert "mixture" in plain
        assert not set(plain) & set("│┃─━╭╮╰╯|")


def test_progress_goes_to_the_terminal_and_results_stay_whole(shell: SimpleNamespace) -> None:
    text, code = shell.at_terminal("probe", "work", program=shell.probe)
    plain = shell.without_style(text)
    assert code == 0
    assert "working [fast]" in plain
    assert "20/20 (100 %) in 0:0" in plain
    assert "left" in plain
    assert "inner" in plain
    assert "in between" in plain
    assert "[bold]x[/bold]  0.05" in plain


def test_results_sent_to_a_file_stay_out_of_the_progress_at_the_terminal(shell: SimpleNamespace, tmp_path) -> None:
    script = tmp_path / "run.sh"
    result = tmp_path / "result.txt"
    script.write_text(f"{' '.join(shell.probe)} probe work > {result}\n")
    text, code = shell.at_terminal(str(script), program=["sh"])
    assert code == 0
    assert "20/20 (100 %)" in shell.without_style(text)
    assert "in between" not in text
    assert result.read_text().splitlines() == ["in between", "name            loss", "[bold]x[/bold]  0.05"]


def test_short_work_is_silent_in_a_log(shell: SimpleNamespace) -> None:
    ran = shell.piped("probe", "work", program=shell.probe)
    assert ran.stderr == ""
    assert "0.05" in ran.stdout


def test_long_work_writes_plain_lines_with_the_time_left_in_a_log(shell: SimpleNamespace) -> None:
    program = (
        "import time\nfrom tenfold.console.progress import progress\n"
        "with progress('training', 4, every=0.05) as display:\n"
        "    for i in range(4):\n        time.sleep(0.1)\n        display.advance(loss=0.5)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = ran.stderr.splitlines()
    assert lines[0] == "training: 1/4 (25 %), 0:00 left, loss 0.5"
    assert lines[-1] == "training: 4/4 (100 %), done in 0:00, loss 0.5"


def test_hidden_progress_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("hidden", 2, show=False, every=0) as display:
        display.advance(loss=1.0)
    assert capsys.readouterr().err == ""


def test_json_keeps_numbers_and_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a", np.float32(0.5), np.int64(3), True], ["b", float("nan"), None, False]]
    show_table("T", ["name", "x", "n", "ok"], rows, json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"name": "a", "x": 0.5, "n": 3, "ok": True},
        {"name": "b", "x": None, "n": None, "ok": False},
    ]
    show_record("R", {"x": float("inf"), "list": [1, 2]}, json=True)
    assert json.loads(capsys.readouterr().out) == {"x": None, "list": [1, 2]}


def test_an_empty_table_is_its_header_or_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("T", ["name", "x"], [])
    assert capsys.readouterr().out == "name  x\n"
    show_table("T", ["name", "x"], [], json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_wide_characters_stay_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("T", ["name", "x"], [["日本", 1], ["abc", 22]])
    assert capsys.readouterr().out == "name   x\n日本   1\nabc   22\n"


def test_a_row_of_the_wrong_length_is_named() -> None:
    with pytest.raises(ValueError, match="a row of 'T' has 1 values for 2 columns"):
        show_table("T", ["name", "x"], [["a"]])
