import http.server
import os
import threading
from functools import partial

import pytest


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    """Every test has a cache of its own, and pip knows no index but the folder `index`."""
    (tmp_path / "index").mkdir()
    (tmp_path / "data").mkdir()
    for name, value in {
        "TENFOLD_CACHE": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "index"),
        "PIP_NO_CACHE_DIR": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TENFOLD_DATA", raising=False)


@pytest.fixture
def index(tmp_path):
    return tmp_path / "index"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "datasets"


class Quiet(http.server.SimpleHTTPRequestHandler):
    stall = threading.Event()

    def log_message(self, format, *arguments):
        pass

    def do_GET(self):
        if self.path.startswith("/stalls"):  # half of what was promised, then silence
            self.send_response(200)
            self.send_header("Content-Length", "10240")
            self.end_headers()
            self.wfile.write(bytes(5120))
            self.wfile.flush()
            self.stall.wait(30)
            return
        super().do_GET()


@pytest.fixture
def publisher(tmp_path):
    """Address of a server on this machine that publishes the folder `published`."""
    (tmp_path / "published").mkdir()
    Quiet.stall.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "published"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    Quiet.stall.set()
    server.shutdown()
    thread.join()
    server.server_close()
