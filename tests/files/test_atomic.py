import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenfold.errors import InputError
from tenfold.files import atomic, atomic_folder, atomic_path, atomic_write


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_text_is_written_as_it_is(tmp_path):
    path = atomic_write(tmp_path / "Grüße an alle.txt", "ä\r\nb\n")
    assert path.read_bytes() == "ä\r\nb\n".encode()
    assert names(tmp_path) == [path.name]


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text("old")
    path.chmod(0o750)
    atomic_write(path, "new")
    assert path.stat().st_mode & 0o777 == 0o750


def test_a_link_is_kept_and_its_target_replaced(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    atomic_write(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_a_failing_writer_leaves_the_old_file(tmp_path):
    path = atomic_write(tmp_path / "a.txt", "old")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:  # noqa: PT012
        temporary.write_text("ne")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_the_temporary_name_keeps_the_suffix_and_fits_the_file_system(tmp_path):
    with atomic_path(tmp_path / ("ß" * 120 + ".npz")) as temporary:
        assert temporary.suffix == ".npz"
        temporary.write_bytes(b"x")


def test_a_block_that_wrote_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.txt"):
        pass


def test_a_device_is_written_directly():
    atomic_write(os.devnull, "gone")
    assert not Path(os.devnull).is_file()


def test_file_and_folder_are_not_confused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="this is a folder"):
        atomic_write(tmp_path, "x")
    with pytest.raises(InputError, match="this is a file"), atomic_folder(tmp_path / "file"):
        pass


def test_the_working_directory_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    for place in (".", "..", tmp_path):
        with pytest.raises(InputError, match="working directory"), atomic_folder(place):
            pass


@pytest.mark.parametrize("one_step", [True, False])
def test_a_folder_is_replaced_and_other_peoples_files_stay(tmp_path, monkeypatch, one_step):
    if not one_step:
        monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    model = tmp_path / "model"
    (model / "checkpoints").mkdir(parents=True)
    (model / "checkpoints" / "last.ckpt").write_text("user's")
    (model / "config.json").write_text("old")
    (model / "dangling").symlink_to("nowhere")
    with atomic_folder(model) as folder:
        (folder / "config.json").write_text("new")
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "next.ckpt").write_text("ours")
    assert (model / "config.json").read_text() == "new"
    assert names(model / "checkpoints") == ["last.ckpt", "next.ckpt"]
    assert (model / "dangling").is_symlink()
    assert names(tmp_path) == ["model"]


def test_a_failing_writer_leaves_the_old_folder(tmp_path):
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "config.json").write_text("old")
    with pytest.raises(OSError, match="disk full"), atomic_folder(tmp_path / "model") as folder:  # noqa: PT012
        (folder / "config.json").write_text("ne")
        raise OSError("disk full")
    assert (tmp_path / "model" / "config.json").read_text() == "old"
    assert names(tmp_path) == ["model"]


KEEPS_REPLACING = """
import sys
from tenfold.files import atomic_folder
number = 0
while True:
    with atomic_folder(sys.argv[1]) as folder:
        for name in "ab":
            (folder / name).write_text(str(number))
    number += 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_writer_leaves_a_whole_folder(tmp_path):
    model = tmp_path / "model"
    for attempt in range(4):
        writer = subprocess.Popen([sys.executable, "-c", KEEPS_REPLACING, str(model)])
        deadline = time.monotonic() + 30
        while not model.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert (model / "a").read_text() == (model / "b").read_text()
