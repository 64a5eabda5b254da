"""The benchmark harness on work that does nothing. No test here judges a time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.case import OURS, Case, MissingContestantError, Peer, areas, load_cases
from benchmarks.contestant import Worker, peak_growth
from benchmarks.measure import Spread, measure
from benchmarks.results import markdown, update_results

ROOT = Path(__file__).parents[2]


def one(inputs):
    return inputs


def case(**peers):
    return Case("nothing", lambda: 1, one, peers)


def run_harness(*arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_contestants_take_turns():
    order = []
    contest = Case("turns", lambda: None, lambda _: order.append("A"), {"B": lambda _: order.append("B")})
    measure("selftest", contest, repeats=4, turn_seconds=0.0, memory=False)
    ready, calibrated, turns = order[:2], order[2:6], order[6:]
    assert ready == ["A", "B"]
    assert calibrated == ["A", "A", "B", "B"]
    assert turns == ["A", "B"] * 4


def test_every_contestant_has_a_row_and_ratios_are_ours_over_theirs():
    rows = measure("selftest", case(other=one), repeats=3, turn_seconds=0.0, memory=False)
    assert [row.contestant for row in rows] == [OURS, "other"]
    ours, other = rows
    assert ours.wall_ratio is None
    expected = [a / b for a, b in zip(ours.turns["wall"], other.turns["wall"], strict=True)]
    assert other.wall_ratio == Spread.of(expected)
    assert other.wall.low <= other.wall.median <= other.wall.high


def test_missing_peer_is_a_row_that_says_how_to_install_it():
    peer = Peer(one, package="no-such-package", module="no_such_module_at_all")
    row = measure("selftest", case(nobody=peer), repeats=1, turn_seconds=0.0, memory=False)[1]
    assert row.missing == "not installed: pip install no-such-package"
    assert row.wall is None


def test_peer_whose_own_dependency_is_missing_is_a_row_too():
    def needs_more(inputs):
        import no_such_module_at_all  # type: ignore[import-not-found]  # noqa: F401

    row = measure("selftest", case(other=needs_more), repeats=1, turn_seconds=0.0, memory=False)[1]
    assert row.missing == "not installed: pip install no_such_module_at_all"


def test_missing_interpreter_is_a_row_too():
    rows = measure(
        "selftest", case(other=one), repeats=1, turn_seconds=0.0, memory=False, pythons={"other": "/no/such/python"}
    )
    assert rows[1].missing == "cannot run /no/such/python: No such file or directory"


def test_prepare_is_not_part_of_the_work():
    prepared = []

    def prepare(inputs):
        prepared.append(inputs)
        return inputs

    peer = Peer(one, package="math", prepare=prepare)
    measure("selftest", case(other=peer), repeats=5, turn_seconds=0.0, memory=False)
    assert prepared == [1]


def test_worker_process_answers_with_times_and_memory():
    worker = Worker("selftest", "sum of 2000 numbers", "fsum")
    try:
        timing = worker.time(3)
        assert timing.wall > 0
        assert worker.memory() >= 0
    finally:
        worker.close()
    assert worker.process.returncode == 0


def test_worker_process_names_the_missing_package():
    with pytest.raises(MissingContestantError, match="not installed: pip install no-such-package"):
        Worker("selftest", "sum of 2000 numbers", "nobody")


def test_worker_takes_turns_with_this_process():
    contest = load_cases("selftest")[0]
    rows = measure("selftest", contest, repeats=2, turn_seconds=0.0, pythons={"fsum": sys.executable})
    assert [row.place for row in rows if not row.missing] == ["same process", "same process", "own process"]
    assert all(row.memory is not None for row in rows if not row.missing)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the high-water mark can be set back on Linux only")
def test_peak_memory_counts_what_one_call_touches():
    growth = peak_growth(lambda: bytearray(b"x") * 2**25)
    assert 0.98 * 2**25 < growth < 1.1 * 2**25


def test_spread_is_the_interquartile_range_over_the_median():
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 1.0, 5.0, 2 / 3)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 0.0)


def test_unknown_area_is_refused_with_the_list():
    with pytest.raises(ValueError, match="no benchmark 'nothing'; there are: "):
        load_cases("nothing")


def test_every_benchmark_loads_and_its_cases_have_names_of_their_own():
    for area in areas():
        assert load_cases(area)


def test_command_prints_a_table_and_writes_json(tmp_path):
    path = tmp_path / "figures.json"
    result = run_harness("selftest", "--quick", "--repeats", "2", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert "not installed: pip install no-such-package" in result.stdout
    document = json.loads(path.read_text())
    assert document["settings"] == {"threads": 1, "turns": 2, "quick": "yes"}
    assert document["machine"]
    assert [row["contestant"] for row in document["rows"]] == [OURS, "loop", "fsum", "nobody"]
    assert "sum of 2000 numbers" in markdown([document])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no benchmark 'nothing'"),
        (["selftest", "--case", "dragons"], "no case of selftest contains 'dragons'"),
        (["selftest", "--peer", "fsum"], "give NAME=/path/to/python"),
        (["selftest", "--peer", "who=python"], "no contestant 'who'"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(arguments, message):
    result = run_harness(*arguments)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_results_page_is_made_of_every_file_that_is_kept(tmp_path):
    rows = measure("selftest", case(other=one), repeats=2, turn_seconds=0.0, memory=False)
    from benchmarks.results import as_json

    for area in ("first", "second"):
        text = as_json(area, rows, date="2030-01-02", machine={"cpu": "abacus"}, settings={"threads": 1})
        (tmp_path / f"{area}.json").write_text(text)
    update_results(tmp_path, tmp_path / "RESULTS.md")
    page = (tmp_path / "RESULTS.md").read_text()
    assert "## first" in page
    assert "## second" in page
    assert "2030-01-02; threads 1; cpu abacus" in page


def test_kept_results_and_page_agree(tmp_path):
    page = ROOT / "benchmarks" / "RESULTS.md"
    kept = ROOT / "benchmarks" / "results"
    if not page.exists():
        assert not kept.exists()
        return
    update_results(kept, tmp_path / "RESULTS.md")
    assert page.read_text() == (tmp_path / "RESULTS.md").read_text()
