"""A small run with everything that makes resuming hard: dropout, batch norm, shuffling, augmentation, Adam, schedules,
moving averages.

Also a program: ``runs.py FOLDER`` trains slowly until somebody kills it.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import Dataset

from tenfold.training import SeededLoader, seed_everything, train


class Augmented(Dataset):
    """Rows that are disturbed by all three global generators when they are read."""

    def __init__(self, size: int = 22) -> None:
        generator = torch.Generator().manual_seed(5)
        self.rows = torch.randn(size, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = random.gauss(0, 0.1) + np.random.normal(0, 0.1) + 0.1 * torch.randn(4)
        return self.rows[index] + noise, self.rows[index].sum()


class Network(LightningModule):
    def __init__(self, pause: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.register_buffer("average", torch.zeros(8))
        self.pause = pause

    def loss(self, batch: Any) -> Tensor:
        return ((self.layers(batch[0])[:, 0] - batch[1]) ** 2).mean()

    def training_step(self, batch: Any) -> Tensor:
        time.sleep(self.pause)
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any) -> None:
        self.log("validation", self.loss(batch) + torch.rand(()))  # draws, and decides on the learning rate

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.lerp_(self.layers[0].bias.detach() + 0.01 * torch.randn(8), 0.1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        # no epoch is 10 times better than the first: the rate falls after each
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "validation"}}


def run(folder: Path | None, *, pause: float = 0.0, **options: Any) -> tuple[Network, Trainer]:
    """Six batches an epoch, the last one smaller."""
    seed_everything(1)
    network = Network(pause)
    options = {"max_epochs": 3, "device": "cpu", "progress": False, "seed": 1} | options
    data = options.pop("data", None) or SeededLoader(Augmented(), 4, seed=3)
    validation = SeededLoader(Augmented(10), 5, shuffle=False)
    return network, train(network, data, val_data=validation, checkpoint_dir=folder, **options)


def weights(network: nn.Module) -> Tensor:
    """All of the state as one vector."""
    return torch.cat([value.double().flatten() for value in network.state_dict().values()])


if __name__ == "__main__":
    run(Path(sys.argv[1]), pause=0.1, checkpoint_minutes=0)
