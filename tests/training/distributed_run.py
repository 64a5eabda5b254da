"""A program for two processes: one run straight through, and one stopped in mid-epoch and resumed."""

import os
import signal
import sys
from pathlib import Path

import torch
from lightning.pytorch import Callback

sys.path.insert(0, str(Path(__file__).parent))

import runs

from tenfold.training import Interrupted


class Watch(Callback):
    """Notes the data and a draw of this process, and stops the run at a step: in the second process only."""

    def __init__(self, stop_at=None):
        self.sums, self.draws, self.stop_at = [], [], stop_at

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.sums.append(round(batch[1].sum().item(), 4))
        self.draws.append(torch.rand(()).item())
        if trainer.global_step == self.stop_at and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def main(folder: Path) -> None:
    options = {"devices": 2, "strategy": "ddp", "max_epochs": 2, "data": None}
    watch = Watch()
    network, trainer = runs.run(folder / "a", callbacks=[watch], **options)
    expected, rank = runs.weights(network), trainer.global_rank
    first = Watch(stop_at=4)
    try:
        runs.run(folder / "b", callbacks=[first], **options)
        stopped = None
    except Interrupted as interrupted:
        stopped = interrupted.saved.name
    second = Watch()
    network, _ = runs.run(folder / "b", resume=True, callbacks=[second], **options)
    report = {
        "same": torch.equal(runs.weights(network), expected),
        "draws": first.draws + second.draws == watch.draws,
        "stopped": stopped,
        "steps": len(watch.draws),
        "draw": watch.draws[0],
        "sums": watch.sums[:3],
    }
    (folder / f"report-{rank}").write_text(repr(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
