"""The command ``tenfold reproduce``, run as a process on an area of sample claims."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, str(Path(__file__).with_name("sample_command.py")), "reproduce"]


@pytest.fixture
def reproduce(tmp_path, tmp_path_factory):
    environment = {**os.environ, "TENFOLD_CACHE": str(tmp_path_factory.mktemp("cache"))}

    def reproduce(*words):
        return subprocess.run([*COMMAND, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)

    return reproduce


def test_claims_that_hold_end_with_0_and_a_report(reproduce, tmp_path):
    run = reproduce("sample", "--claim", "sample.fair-coin", "--scale", "smoke", "--out", "here/it is")
    assert run.returncode == 0, run.stderr
    assert "1 of 1 claim holds." in run.stdout
    assert "Report: here/it is/index.html" in run.stdout
    assert "✓ holds" in run.stderr
    assert (tmp_path / "here" / "it is" / "index.html").is_file()
    assert (tmp_path / "here" / "it is" / "report.json").is_file()


def test_all_fates_are_named_and_a_failure_ends_with_1(reproduce, tmp_path):
    run = reproduce("--scale", "smoke")
    assert run.returncode == 1
    for said in (
        "✗ does not hold",
        "no throws, no share",
        "1 of 5 claims holds, 2 do not hold, 1 is inconclusive, 1 ended with an error.",
        "The area lacking was not run: this needs the package not_installed_anywhere: pip install",
        "Known not to hold in our setting: sample.known-to-fail.",
        "more seeds may decide: --seeds 4",
    ):
        assert said in run.stdout, said
    page = (tmp_path / "report" / "index.html").read_text()
    assert "The area lacking was not run" in page
    assert "Bernoulli 1713, Ars conjectandi" in page


def test_a_claim_that_should_hold_and_does_not_ends_with_1_and_json_says_so(reproduce):
    run = reproduce("--claim", "sample.exact-half", "--scale", "smoke", "--seeds", "3", "--json")
    assert run.returncode == 1
    (row,) = json.loads(run.stdout)
    assert (row["claim"], row["verdict"], row["seeds"]) == ("sample.exact-half", "does not hold", 3)
    assert (row["as_expected"], row["error"], row["threshold"]) == (False, "", -1.0)
    assert row["low"] <= row["measured"] <= row["high"]


def test_at_a_terminal_the_run_is_shown_live(tmp_path, tmp_path_factory):
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "TENFOLD_CACHE": str(tmp_path_factory.mktemp("cache")),
        "TERM": "xterm",
        "COLUMNS": "100",
    }
    words = ["--claim", "sample.fair-coin", "--claim", "sample.raises", "--scale", "smoke"]
    with subprocess.Popen([*COMMAND, *words], cwd=tmp_path, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            try:
                said += os.read(ours, 65536) if select.select([ours], [], [], 0.2)[0] else b""
            except OSError:  # Linux says so when the other end has closed
                break
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert "of 4 measurements" in text
    assert "sample.fair-coin seed 1" in text
    assert "✓ holds" in text
    assert "! error" in text


def test_an_area_asked_for_without_its_packages_is_bad_input(reproduce):
    run = reproduce("lacking")
    assert run.returncode == 2
    assert "tenfold[lacking]" in run.stderr


def test_list_runs_nothing(reproduce, tmp_path):
    run = reproduce("sample", "--list", "--json")
    assert run.returncode == 0
    assert json.loads(run.stdout)[0]["claim"] == "sample.fair-coin"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sampel"], "there is no area 'sampel'; did you mean sample?"),
        (["zoology"], "there is no area 'zoology'; the areas are sample, lacking"),
        (["--claim", "sample.fair-cion"], "no claim 'sample.fair-cion' in sample; did you mean sample.fair-coin"),
        (["--claim", "fair-coin"], "did you mean sample.fair-coin"),
        (["--seeds", "0"], "0"),
        (["--scale", "huge"], "huge"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(words, message, reproduce, tmp_path):
    run = reproduce(*words)
    assert run.returncode == 2
    assert message in run.stderr
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""
    assert not list(tmp_path.iterdir())
