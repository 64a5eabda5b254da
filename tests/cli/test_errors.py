import os
import signal
import subprocess
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("input", 2, "tenfold: people.csv:7: column 'age' holds text ('n/a'); numbers are needed\n"),
        ("value", 2, "tenfold: num_groups=5 does not divide num_channels=32\n"),
        ("file", 2, "tenfold: no/such/file.csv: no such file or directory\n"),
        ("extra", 2, "tenfold: this needs the package h5py: pip install 'tenfold[elmo]'\n"),
        ("import", 2, "tenfold: this needs the package package_of_the_probe: pip install 'tenfold[probe]'\n"),
        ("bug", 1, "tenfold: ZeroDivisionError: division by zero (run again with -v for the traceback)\n"),
        ("exit", 1, ""),
        ("none", 0, ""),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(shell: SimpleNamespace, kind: str, code: int, message: str) -> None:
    ran = shell.piped("probe", "fail", kind, program=shell.probe)
    assert (ran.stderr, ran.stdout, ran.returncode) == (message, "", code)


@pytest.mark.parametrize("words", [["-v", "probe", "fail", "bug"], ["probe", "fail", "bug", "--verbose"]])
def test_verbose_shows_the_traceback_wherever_it_stands(shell: SimpleNamespace, words: list[str]) -> None:
    ran = shell.piped(*words, program=shell.probe)
    assert ran.returncode == 1
    assert ran.stderr.startswith("Traceback")
    assert 'raise ZeroDivisionError("division by zero")' in ran.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["mixtur"], ["no command 'mixtur'; did you mean mixture?"]),
        (["doctr"], ["did you mean doctor?"]),
        (["zzzz"], ["no command 'zzzz'; there are mixture,"]),
        (["areas", "--jsn"], ["--jsn", "--json", "(see tenfold areas --help)"]),
        (["areas", "surplus"], ["surplus"]),
        (["probe", "wrk"], ["wrk", "did you mean", "work"]),
        (["probe", "fail"], ["Missing argument 'KIND'"]),
        (["probe", "fail", "none", "--seed", "x"], ["--seed", "'x'", "(see tenfold probe fail --help)"]),
        (["probe", "fail", "none", "--seed", "-1"], ["--seed", "-1"]),
        (["probe", "fail", "none", "--device", "gpu"], ["--device", "'gpu' is no device; give auto, cpu, cuda"]),
    ],
)
def test_a_wrong_call_is_one_line_with_what_would_be_right(
    shell: SimpleNamespace, words: list[str], parts: list[str]
) -> None:
    ran = shell.piped(*words, program=shell.probe)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("tenfold: ")
    assert ran.stderr.count("\n") == 1
    for part in parts:
        assert part.lower() in ran.stderr.lower()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--no-saves", "tenfold: interrupted\n"),
        ("--saves", "tenfold: interrupted after 3 epochs; saved in model/checkpoint.ckpt\n"),
    ],
)
def test_ctrl_c_says_what_was_saved_and_leaves_with_130(shell: SimpleNamespace, option: str, message: str) -> None:
    process = subprocess.Popen(
        [*shell.probe, "probe", "wait", option],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=shell.environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a job in background ignores it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert errors.endswith(message)
    assert "Traceback" not in errors
    assert process.returncode == 130


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["rows"], ["rows", "--json"], ["rows", "--count", "3"]])
def test_a_reader_that_leaves_early_is_no_error(shell: SimpleNamespace, words: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [*shell.probe, "probe", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=shell.environment(PYTHONUNBUFFERED=unbuffered),
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert process.stderr == ""
    assert process.returncode == 1


def test_head_of_a_long_table_is_quiet(shell: SimpleNamespace) -> None:
    line = " ".join([*shell.probe, "probe", "rows"]) + " | head -n 2"
    ran = subprocess.run(line, shell=True, capture_output=True, text=True, env=shell.environment(), check=True)
    assert ran.stderr == ""
    assert [text.split() for text in ran.stdout.splitlines()] == [["row", "square"], ["0", "0"]]


def test_a_full_disk_is_one_line(shell: SimpleNamespace) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ran = subprocess.run(
            [*shell.probe, "probe", "rows"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=shell.environment(),
            check=False,
        )
    assert ran.stderr == "tenfold: no space left on device\n"
    assert ran.returncode == 1
