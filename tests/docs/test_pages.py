"""What the README and the docs show works: Python blocks run, commands and options exist."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, blocks, named, pages, shell_lines
from typer.main import get_command

from tenfold.areas import AREAS
from tenfold.console.main import main
from tenfold.console.root import app

OWN_PROGRAMS = {"pytest", "ruff", "mypy", "lint-imports", "mkdocs", "pip", "python", "python3", "bash", "source"}


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page, "python")], ids=named)
def test_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for block in blocks(page, "python"):
        padded = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's own line
        exec(compile(padded, str(page), "exec"), namespace)


def test_commands_of_the_readme_work_in_an_empty_folder(tmp_path, monkeypatch, capsys):
    page = ROOT / "README.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "tenfold.mixture.training.FEWEST_STEPS", 100
    )  # the commands to the letter, the training shorter
    for block in blocks(page, "python"):
        exec(compile(block.text, str(page), "exec"), {"__name__": "page"})
    lines = [shlex.split(line) for line in shell_lines(page)]
    jobs = [words[1:] for words in lines if words[0] == "tenfold" and words[1] in {area.name for area in AREAS}]
    assert jobs
    for words in jobs:
        assert main(words) == 0, (words, capsys.readouterr().err)
    written = {Path(words[words.index("--out") + 1]) for words in jobs if "--out" in words}
    assert all(path.exists() for path in written)


def tenfold_calls():
    for page in pages():
        for line in shell_lines(page):
            for part in line.split("&&"):
                words = shlex.split(part)
                if words and Path(words[0]).name == "tenfold":
                    yield pytest.param(words[1:], id=f"{named(page)}: {part.strip()}")


@pytest.mark.parametrize("words", list(tenfold_calls()))
def test_commands_that_pages_show_exist_with_their_options(words):
    command = get_command(app)
    words = [word for word in words if word not in {"-v", "--verbose"}]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
        if hasattr(command, "load"):
            command = get_command(command.load())
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert not getattr(command, "commands", {}) or not words or words[0].startswith("-"), f"no command {words[0]!r}"
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known | {"--help"}


def test_benchmark_options_that_pages_show_exist():
    from benchmarks.__main__ import run
    from benchmarks.case import areas
    from typer import Typer

    harness = Typer()
    harness.command()(run)
    known = {name for option in get_command(harness).params for name in option.opts}
    shown = [line for page in pages() for line in shell_lines(page) if line.startswith("python -m benchmarks ")]
    assert shown
    for line in shown:
        _, _, _, area, *options = shlex.split(line)
        assert area in areas()
        assert {word for word in options if word.startswith("-")} <= known


def test_pages_show_no_other_programs_than_ours():
    for page in pages():
        for line in shell_lines(page):
            for part in line.split("&&"):
                program = Path(shlex.split(part)[0]).name
                assert program in OWN_PROGRAMS | {"tenfold"}, f"{named(page)}: {line}"


@pytest.mark.parametrize("marker", ["main job", "tests"])
def test_readme_gives_the_command_in_one_line(marker):
    source = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"^<!-- {marker} -->\n```sh\n(.*\n)```$", source, re.MULTILINE)
    assert len(found) == 1
    checked = subprocess.run(["bash", "-n", "-c", found[0]], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_files_that_the_readme_links_to_exist():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{named(page)} links to {target}"


def test_continuous_integration_script_is_valid_and_executable():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
