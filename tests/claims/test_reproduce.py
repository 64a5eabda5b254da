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


class Command:
    """``tenfold reproduce`` with the sample claims, in a folder and with a cache of its own."""

    def __init__(self, folder, cache):
        self.folder = folder
        self.environment = {**os.environ, "TENFOLD_CACHE": str(cache), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}

    def start(self, *words, stderr=subprocess.PIPE):
        command = [*COMMAND, *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=stderr, text=True
        )

    def __call__(self, *words):
        with self.start(*words) as process:
            stdout, stderr = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


@pytest.fixture
def reproduce(tmp_path, tmp_path_factory):
    return Command(tmp_path, tmp_path_factory.mktemp("cache"))


def test_claims_that_hold_end_with_0_and_a_report(reproduce, tmp_path):
    run = reproduce("sample", "--claim", "sample.fair-coin", "--scale", "smoke", "--out", "here/it is")
    assert run.returncode == 0, run.stderr
    assert "1 of 1 claim holds." in run.stdout
    assert "Report: here/it is/index.html" in run.stdout
    assert "✓ holds" in run.stderr
    assert (tmp_path / "here" / "it is" / "index.html").is_file()
    assert (tmp_path / "here" / "it is" / "report.json").is_file()


def test_a_run_is_shown_live_at_a_terminal_and_ends_with_all_fates_named(reproduce, tmp_path):
    ours, theirs = pty.openpty()
    shown = b""
    with reproduce.start("--scale", "smoke", stderr=theirs) as process:
        os.close(theirs)
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            try:
                shown += os.read(ours, 65536) if select.select([ours], [], [], 0.2)[0] else b""
            except OSError:  # Linux says so when the other end has closed
                break
        said = process.stdout.read()
    os.close(ours)
    assert process.returncode == 1
    live = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    # which measurements are seen at work depends on their speed: all ten may end between two looks
    for line in ("of 10 measurements", "✓ holds", "! error"):
        assert line in live, line
    for line in (
        "✗ does not hold",
        "no throws, no share",
        "1 of 5 claims holds, 2 do not hold (1 of them as expected), 1 is inconclusive, 1 ended with an error.",
        "The area lacking was not run: this needs the package not_installed_anywhere: pip install",
        "Known not to hold in our setting: sample.known-to-fail.",
        "✗ does not hold (as expected)",
        "✗ does not hold (expected: holds)",
        "For an answer: --scale quick",
    ):
        assert line in said, line
    assert "more seeds" not in said
    page = (tmp_path / "report" / "index.html").read_text()
    assert "For an answer: --scale quick" in page
    assert "The area lacking was not run" in page
    assert "Bernoulli 1713, Ars conjectandi" in page


def test_a_claim_that_should_hold_and_does_not_ends_with_1_and_json_says_so(reproduce):
    run = reproduce("--claim", "sample.exact-half", "--scale", "smoke", "--seeds", "3", "--json")
    assert run.returncode == 1
    (row,) = json.loads(run.stdout)
    assert (row["claim"], row["verdict"], row["seeds"]) == ("sample.exact-half", "does not hold", 3)
    assert (row["as_expected"], row["error"], row["threshold"]) == (False, "", -1.0)
    assert row["low"] <= row["measured"] <= row["high"]


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
    assert run.stderr.count("\n") == 1, run.stderr
    assert run.stdout == ""
    assert not list(tmp_path.iterdir())
