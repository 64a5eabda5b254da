import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader, TensorDataset

from tenfold.errors import InputError
from tenfold.training import Interrupted, SeededLoader, last_checkpoint
from tenfold.training.checkpoints import list_checkpoints


class SignalAt(Callback):
    """Sends this process real signals in the middle of a step."""

    def __init__(self, step, *numbers):
        self.step = step
        self.numbers = numbers

    def on_after_backward(self, trainer, module):
        if trainer.global_step == self.step:
            for number in self.numbers:
                os.kill(os.getpid(), number)


def test_run_killed_in_mid_epoch_resumes_to_the_same_weights(runs, uninterrupted, tmp_path):
    program = [sys.executable, str(Path(__file__).with_name("runs.py")), str(tmp_path)]
    with subprocess.Popen(program) as process:
        try:
            deadline = time.monotonic() + 120
            while (last := last_checkpoint(tmp_path)) is None or last.stem < "step-00000009":  # 9 is in mid-epoch
                assert process.poll() is None, "the program ended before it was killed"
                assert time.monotonic() < deadline, "the program wrote no checkpoint"
                time.sleep(0.01)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    network, trainer = runs.run(tmp_path, resume=True)
    assert trainer.global_step == 18
    assert torch.equal(runs.weights(network), uninterrupted[1])


@pytest.mark.parametrize("step", [1, 5, 6, 7, 12, 13, 17, 18])  # epochs end at 6, 12 and 18
def test_every_checkpoint_leads_to_the_same_weights(runs, uninterrupted, step):
    folder, expected = uninterrupted
    network, trainer = runs.run(None, resume=folder / f"step-{step:08d}.safetensors")
    assert trainer.global_step == 18
    assert torch.equal(runs.weights(network), expected)


def test_weights_depend_on_seeds(runs, uninterrupted):
    network, _ = runs.run(None, seed=2)
    assert not torch.equal(runs.weights(network), uninterrupted[1])


@pytest.mark.parametrize("first", [{"max_epochs": 2}, {"max_epochs": None, "max_steps": 12}, {"max_steps": 8}])
@pytest.mark.parametrize("then", [{"max_epochs": 3}, {"max_epochs": None, "max_steps": 18}])
def test_finished_run_goes_on_as_if_it_had_been_longer(runs, uninterrupted, tmp_path, first, then):
    runs.run(tmp_path, **first)
    network, trainer = runs.run(tmp_path, resume=True, **then)
    assert trainer.global_step == 18
    assert torch.equal(runs.weights(network), uninterrupted[1])


def test_resuming_a_finished_run_changes_nothing(runs, uninterrupted, tmp_path):
    runs.run(tmp_path)
    network, trainer = runs.run(tmp_path, resume=True)
    assert trainer.global_step == 18
    assert torch.equal(runs.weights(network), uninterrupted[1])


def test_accumulated_gradients_are_never_lost(runs, tmp_path):
    expected, _ = runs.run(tmp_path, accumulate=4, checkpoint_minutes=0, keep=100)
    assert len(list_checkpoints(tmp_path)) == 6  # 4 + 2 batches an epoch: one within it, one at its end
    for checkpoint in list_checkpoints(tmp_path)[:4:3]:
        network, _ = runs.run(None, accumulate=4, resume=checkpoint)
        assert torch.equal(runs.weights(network), runs.weights(expected))


def test_other_loaders_resume_from_the_start_of_the_epoch(runs, tmp_path):
    def loader():
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(24, 4, generator=generator)
        return DataLoader(TensorDataset(rows, rows.sum(1)), 4, shuffle=True)

    expected, _ = runs.run(tmp_path, data=loader(), checkpoint_minutes=0, keep=100)
    checkpoints = list_checkpoints(tmp_path)
    assert [path.stem for path in checkpoints] == ["step-00000006", "step-00000012", "step-00000018"]
    network, _ = runs.run(None, data=loader(), resume=checkpoints[0])
    assert torch.equal(runs.weights(network), runs.weights(expected))


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_signal_stops_after_the_step_and_leaves_a_checkpoint(runs, uninterrupted, tmp_path, number, name):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=f"stopped at step 8 by {name}; resume from") as stopped:
        runs.run(tmp_path, callbacks=[SignalAt(7, number)])
    assert stopped.value.saved == tmp_path / "step-00000008.safetensors"
    assert signal.getsignal(number) == before
    network, _ = runs.run(tmp_path, resume=True)
    assert torch.equal(runs.weights(network), uninterrupted[1])


def test_second_ctrl_c_stops_at_once_and_names_the_last_checkpoint(runs, tmp_path):
    with pytest.raises(Interrupted, match="stopped at step 7") as stopped:
        runs.run(tmp_path, callbacks=[SignalAt(7, signal.SIGINT, signal.SIGINT)])
    assert stopped.value.saved == tmp_path / "step-00000006.safetensors"


def test_ctrl_c_in_the_last_step_is_not_lost(runs, tmp_path):
    with pytest.raises(Interrupted) as stopped:
        runs.run(tmp_path, callbacks=[SignalAt(17, signal.SIGINT)])
    assert stopped.value.saved == tmp_path / "step-00000018.safetensors"


def test_ctrl_c_without_a_folder_says_that_nothing_was_saved(runs):
    with pytest.raises(Interrupted, match="nothing was saved") as stopped:
        runs.run(None, callbacks=[SignalAt(2, signal.SIGINT)])
    assert stopped.value.saved is None


@pytest.mark.parametrize("shown", [True, False])
def test_resume_starts_at_the_beginning_where_there_is_no_checkpoint_yet_and_says_so(runs, tmp_path, capfd, shown):
    _, trainer = runs.run(tmp_path / "new", resume=True, max_epochs=1, progress=shown)
    assert trainer.global_step == 6
    said = f"tenfold: there is no checkpoint to resume from in {tmp_path / 'new'}; training starts at the beginning\n"
    assert capfd.readouterr().err == (said if shown else "")


def test_folder_of_an_earlier_run_is_not_mixed_with_a_new_one(runs, uninterrupted):
    with pytest.raises(InputError, match="earlier run"):
        runs.run(uninterrupted[0])


def test_changed_data_is_refused(runs, uninterrupted):
    checkpoint = uninterrupted[0] / "step-00000008.safetensors"
    with pytest.raises(InputError, match="size=22 in the data loader, now size=30"):
        runs.run(None, resume=checkpoint, data=SeededLoader(runs.Augmented(30), 4, seed=3))
    with pytest.raises(InputError, match="seed=3 in the data loader, now seed=4"):
        runs.run(None, resume=checkpoint, data=SeededLoader(runs.Augmented(), 4, seed=4))
