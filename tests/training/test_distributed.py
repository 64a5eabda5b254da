import ast
import subprocess
import sys
from pathlib import Path


def test_two_processes_share_the_data_stop_together_and_resume_exactly(tmp_path):
    program = str(Path(__file__).with_name("distributed_run.py"))
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        program,
        str(tmp_path),
    ]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (ast.literal_eval((tmp_path / f"report-{rank}").read_text()) for rank in range(2))
    for report in first, second:
        assert report["same"]
        assert report["draws"]
        assert report["stopped"] == "step-00000004.safetensors"  # only the second process had the signal
        assert report["steps"] == 6  # 11 items each in batches of 4, twice
    assert first["draw"] != second["draw"]
    assert first["sums"] != second["sums"]
