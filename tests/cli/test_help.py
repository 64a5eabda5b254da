import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tenfold import __version__
from tenfold.areas import AREAS
from tenfold.console.main import main

HEAVY = {"torch", "numpy", "scipy", "numba", "matplotlib", "polars", "lightning", "sklearn", "huggingface_hub"}


@pytest.mark.parametrize("command", ["", "datasets", "datasets fetch", "reproduce", "areas", "doctor"])
def test_help_imports_nothing_heavy_and_no_area(shell: SimpleNamespace, command: str) -> None:
    program = (
        "import sys\nfrom tenfold.console.main import main\n"
        f"code = main({[*command.split(), '--help']})\nsys.stderr.write(' '.join(sys.modules))\nsys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=shell.environment(), check=True
    )
    loaded = set(ran.stderr.split())
    assert not loaded & HEAVY
    assert not {f"tenfold.{area.name}" for area in AREAS} & loaded


def test_writing_files_costs_no_library_for_tables_or_images() -> None:
    program = "import sys\nfrom tenfold.files import atomic_write\nsys.stdout.write(' '.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(ran.stdout.split()) & {"polars", "numpy", "PIL"}


@pytest.mark.parametrize("run", ["piped", "at_terminal"])
def test_help_answers_in_half_a_second_of_processor_time(shell: SimpleNamespace, run: str) -> None:
    def seconds() -> float:  # others on the machine decide how long it takes on the wall
        before = os.times()
        getattr(shell, run)("--help")
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    assert min(seconds() for _ in range(5)) < 0.5


def test_help_shows_the_summary_of_each_area_and_command(shell: SimpleNamespace) -> None:
    text = " ".join(shell.piped("--help").stdout.split())
    for area in AREAS:
        assert f"{area.name} {area.summary}" in text
    for command in ("reproduce", "datasets", "areas", "doctor"):
        assert f" {command} " in text


def test_help_in_a_pipe_has_neither_colours_nor_boxes(shell: SimpleNamespace) -> None:
    assert shell.piped("--help").stdout.isascii()
    assert shell.piped("areas", "--help").stdout.isascii()


def test_help_with_no_color_has_neither_colours_nor_boxes(shell: SimpleNamespace) -> None:
    text, code = shell.at_terminal("--help", NO_COLOR="1")
    assert code == 0
    assert text.isascii()
    assert "\x1b" not in text


def test_help_at_a_terminal_has_colours_and_lists_areas_first(shell: SimpleNamespace) -> None:
    text, code = shell.at_terminal("--help", width=100)
    assert code == 0
    assert "\x1b[" in text
    plain = shell.without_style(text)
    assert plain.index("Areas") < plain.index("For all areas")


def test_help_fits_a_narrow_terminal_without_broken_words(shell: SimpleNamespace) -> None:
    text, _ = shell.at_terminal("--help", width=40)
    assert max(map(len, shell.without_style(text).splitlines())) <= 40
    assert "--install-completion" in text
    assert "…" not in text


def test_brackets_in_help_are_shown_as_written(shell: SimpleNamespace) -> None:
    for text in (
        shell.piped("probe", "--help", program=shell.probe).stdout,
        shell.without_style(shell.at_terminal("probe", "--help", program=shell.probe)[0]),
    ):
        assert "tenfold[probe]" in text
        assert "not [bold] at all" in text


def test_defaults_in_bare_help_stand_in_plain_brackets(shell: SimpleNamespace) -> None:
    text = shell.piped("reproduce", "--help").stdout
    assert "[default: " in text
    assert "\\[" not in text


def test_lists_of_commands_are_not_cut_short(shell: SimpleNamespace) -> None:
    text = " ".join(shell.piped("probe", "--help", program=shell.probe).stdout.split())
    assert "work Show progress on standard error, also inside other progress, and a result on standard output." in text


def test_no_words_show_the_help(shell: SimpleNamespace) -> None:
    assert shell.piped().stdout == shell.piped("--help").stdout
    alone = shell.piped("probe", program=shell.probe)
    assert alone.returncode == 0
    assert alone.stdout == shell.piped("probe", "--help", program=shell.probe).stdout


def test_the_command_is_a_function_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "list", "--json"]) == 0
    assert "digits" in [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tenfold {__version__}\n"


def test_version_is_one_line(shell: SimpleNamespace) -> None:
    ran = shell.piped("--version")
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"tenfold {__version__}\n", "", 0)


def test_commands_complete_in_bash(shell: SimpleNamespace) -> None:
    def completions(words: str, position: int) -> list[str]:
        asked = {"_TENFOLD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        ran = shell.piped(**asked)
        assert ran.returncode == 0
        return ran.stdout.split()

    assert completions("tenfold do", 1) == ["doctor"]
    assert "mixture" in completions("tenfold ", 1)
    assert completions("tenfold areas --js", 2) == ["--json"]


def test_a_completion_that_cannot_be_made_is_silent(shell: SimpleNamespace) -> None:
    asked = {"_TENFOLD_COMPLETE": "complete_bash", "COMP_WORDS": "tenfold nothing --js", "COMP_CWORD": "2"}
    assert shell.piped(**asked).stderr == ""


def test_completion_can_be_shown_and_installed(shell: SimpleNamespace, tmp_path) -> None:
    shown = subprocess.run(
        ["bash", "-c", f"{' '.join(shell.tenfold)} --show-completion; true"],
        capture_output=True,
        text=True,
        env=shell.environment(HOME=str(tmp_path), SHELL="/bin/bash"),
        check=True,
    )
    assert "_TENFOLD_COMPLETE=complete_bash" in shown.stdout
    installed = subprocess.run(
        ["bash", "-c", f"{' '.join(shell.tenfold)} --install-completion; true"],
        capture_output=True,
        text=True,
        env=shell.environment(HOME=str(tmp_path), SHELL="/bin/bash"),
        check=True,
    )
    assert "installed" in installed.stdout
    assert "tenfold" in (tmp_path / ".bashrc").read_text()


def test_completion_options_belong_to_the_root_alone(shell: SimpleNamespace) -> None:
    assert "completion" not in shell.piped("areas", "--help").stdout
