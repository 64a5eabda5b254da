import functools
import gzip
import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.datasets.packages import CONTENT, MEMBER, sdist, wheel

from tenfold.datasets.archives import gunzipped, read_member
from tenfold.errors import InputError


def test_a_member_larger_than_known_is_refused(tmp_path):
    for path, member in ((wheel(tmp_path), MEMBER), (sdist(tmp_path), f"toy_numbers-1.0/{MEMBER}")):
        assert read_member(path, member, limit=len(CONTENT)) == CONTENT
        with pytest.raises(InputError, match="unpacks to more than"):
            read_member(path, member, limit=len(CONTENT) - 1)
        with pytest.raises(InputError, match="there is no such member"):
            read_member(path, "toy_numbers/other.bin", limit=10)


def test_gzip_that_unpacks_to_more_than_known_is_refused(tmp_path):
    bomb = gzip.compress(bytes(10_000_000))
    with pytest.raises(InputError, match="unpacks to more than the 1000 bytes"):
        gunzipped(bomb, limit=1000, path=tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_what_is_no_regular_file_is_refused(tmp_path, kind):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("data.bin")
        info.type = kind
        info.linkname = "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(InputError, match=r"data\.bin (is no regular file|cannot be read)"):
        read_member(path, "data.bin", limit=1000)


@functools.cache
def built(build):
    with tempfile.TemporaryDirectory() as folder:
        return build(Path(folder)).read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_archives_give_nothing_but_input_errors(tmp_path, data):
    build, member = data.draw(st.sampled_from([(wheel, MEMBER), (sdist, f"toy_numbers-1.0/{MEMBER}")]))
    content = bytearray(built(build))
    path = tmp_path / "archive"
    for position, value in data.draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=8)):
        content[position] = value
    path.write_bytes(content[: data.draw(st.integers(0, 300))] if data.draw(st.booleans()) else content)
    try:
        read_member(path, member, limit=20_000)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_a_damaged_gzip_is_named(tmp_path):
    torn = gzip.compress(CONTENT)[:-20]
    with pytest.raises(InputError, match="gzip compression is damaged"):
        gunzipped(torn, limit=10**6, path=tmp_path / "a.gz")
    assert io.BytesIO(gunzipped(gzip.compress(CONTENT), limit=10**6, path=tmp_path)).read() == CONTENT
