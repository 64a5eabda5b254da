import csv
import importlib.util
import logging
import subprocess
import sys
import warnings
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from tenfold.errors import InputError, MissingExtraError
from tenfold.training import SeededLoader, last_checkpoint, train


def test_nothing_is_written_or_warned_without_progress(runs, capfd, caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.INFO):
        warnings.simplefilter("error")
        runs.run(None, max_epochs=1)
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []


def test_warnings_of_the_users_code_come_through(runs):
    class Warns(Callback):
        def on_train_start(self, trainer, module):
            warnings.warn("mind the gap", stacklevel=1)

    with pytest.warns(UserWarning, match="mind the gap"):
        runs.run(None, max_epochs=1, callbacks=[Warns()])


def test_progress_goes_to_standard_error_with_the_time_left(runs, capfd, monkeypatch):
    from tenfold.console import progress

    first = progress.Lines.__init__
    monkeypatch.setattr(
        progress.Lines, "__init__", lambda self, description, total, every: first(self, description, total, 0.0)
    )
    runs.run(None, progress=True, description="small run", pause=0.05)
    output, errors = capfd.readouterr()
    assert output == ""
    assert "small run: " in errors
    assert "/18 (" in errors
    assert "left" in errors
    assert "loss" in errors


def test_loss_that_is_not_finite_names_the_step_and_the_last_checkpoint_is_good(runs, tmp_path):
    rows = torch.randn(24, 4)
    target = rows.sum(1)
    data = SeededLoader((rows, target), 4, shuffle=False)

    class Poison(Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if trainer.global_step == 8:
                batch[1].fill_(float("nan"))

    with pytest.raises(FloatingPointError, match=r"the loss is nan at step 9 \(epoch 2\)"):
        runs.run(tmp_path, data=data, callbacks=[Poison()], checkpoint_minutes=0)
    assert last_checkpoint(tmp_path).stem == "step-00000008"


def test_loss_guard_on_other_devices_finds_the_first_bad_step(runs):
    from tenfold.training.lightning_parts import LossGuard

    guard = LossGuard()
    for step, loss in enumerate([1.0, float("inf"), float("nan"), 2.0], start=1):
        guard.note(torch.tensor(loss), step)
    assert guard.first_bad_step() == 2


def test_csv_logger_writes_metrics_beside_the_checkpoints(runs, tmp_path):
    runs.run(tmp_path, logger="csv", log_every=2, max_epochs=1)
    (table,) = (tmp_path / "logs").rglob("metrics.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["step"] for row in rows if row["loss"]] == ["1", "3", "5"]
    assert [row["step"] for row in rows if row["validation"]] == ["5"]


def test_tensorboard_logger_writes_events(runs, tmp_path):
    pytest.importorskip("tensorboard")
    runs.run(None, logger="tensorboard", log_dir=tmp_path, max_epochs=1)
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def test_missing_logger_package_says_how_to_install_it(runs, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mlflow" else found(name, *rest)
    )
    with pytest.raises(MissingExtraError, match=r"mlflow: pip install 'tenfold\[loggers\]'"):
        runs.run(tmp_path, logger="mlflow")


def test_mlflow_needs_the_address_of_its_server(runs, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(InputError, match="needs the variable MLFLOW_TRACKING_URI"):
        runs.run(tmp_path, logger="mlflow")


def test_validation_comes_every_so_many_epochs(runs, monkeypatch):
    monkeypatch.setattr(
        runs.Network, "configure_optimizers", lambda network: torch.optim.SGD(network.parameters(), 0.1)
    )

    class Counts(Callback):
        epochs: ClassVar[list[int]] = []

        def on_validation_end(self, trainer, module):
            self.epochs.append(trainer.current_epoch)

    counts = Counts()
    runs.run(None, max_epochs=5, validate_every=2, callbacks=[counts])
    assert counts.epochs == [1, 3]  # counted from 0


def test_early_stopping_is_a_callback_like_any_other(runs, tmp_path):
    stop = EarlyStopping("validation", patience=1, min_delta=1e9)
    _, trainer = runs.run(tmp_path, callbacks=[stop], max_epochs=9)
    assert trainer.global_step == 12
    assert last_checkpoint(tmp_path).stem == "step-00000012"


def test_gradients_are_clipped(runs):
    class Norm(Callback):
        largest = 0.0

        def on_before_zero_grad(self, trainer, module, optimizer):
            gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
            if gradients:
                self.largest = max(self.largest, torch.cat(gradients).norm().item())

    norm = Norm()
    runs.run(None, max_epochs=1, gradient_clip=1e-3, callbacks=[norm])
    assert 0 < norm.largest < 1.01e-3


def test_double_precision_trains_in_float64(runs):
    rows = torch.randn(24, 4, dtype=torch.float64)
    network, _ = runs.run(None, max_epochs=1, precision="64-true", data=SeededLoader((rows, rows.sum(1)), 4))
    assert network.layers[0].weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_epochs": None}, "one of max_epochs and max_steps is needed"),
        ({"max_epochs": 0}, "max_epochs=0 must be at least 1"),
        ({"keep": 0}, "keep=0 must be at least 1"),
        ({"validate_every": 0}, "validate_every=0 must be at least 1"),
        ({"checkpoint_minutes": -1.0}, r"checkpoint_minutes=-1\.0"),
        ({"device": "tpu"}, "device='tpu' must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'"),
        ({"device": "cpu:1"}, "device='cpu:1' must be"),
        ({"device": "cuda:99"}, "device='cuda:99': torch sees"),
        ({"resume": True}, "resume needs checkpoint_dir"),
        ({"logger": "wandb"}, "logger='wandb' must be one of csv, tensorboard, mlflow"),
        ({"logger": "csv"}, "needs log_dir or checkpoint_dir"),
    ],
)
def test_bad_arguments_are_named(runs, options, said):
    with pytest.raises(InputError, match=said):
        runs.run(None, **options)


def test_sharded_strategies_are_refused_with_checkpoints_only(runs, tmp_path):
    with pytest.raises(InputError, match="strategy='fsdp' shards the weights"):
        runs.run(tmp_path, strategy="fsdp")


def test_package_names_are_there_without_importing_lightning():
    program = (
        "import sys; from tenfold.training import Interrupted; assert not {'torch', 'lightning'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert callable(train)
