"""Training that can be killed and resumed exactly, and models that are folders.

Names are looked up when they are used, so that `Interrupted` does not cost torch, nor `ModelFolder` Lightning.
"""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.training.checkpoints import clear_checkpoints, last_checkpoint, read_checkpoint
    from tenfold.training.interruption import Interrupted
    from tenfold.training.loader import SeededLoader
    from tenfold.training.model_folder import ModelFolder
    from tenfold.training.seeds import derived_seed, seed_everything, seeded_generator
    from tenfold.training.trainer import train

__all__ = [
    "Interrupted",
    "ModelFolder",
    "SeededLoader",
    "clear_checkpoints",
    "derived_seed",
    "last_checkpoint",
    "read_checkpoint",
    "seed_everything",
    "seeded_generator",
    "train",
]

_HOMES = {
    "Interrupted": "interruption",
    "ModelFolder": "model_folder",
    "SeededLoader": "loader",
    "clear_checkpoints": "checkpoints",
    "derived_seed": "seeds",
    "last_checkpoint": "checkpoints",
    "read_checkpoint": "checkpoints",
    "seed_everything": "seeds",
    "seeded_generator": "seeds",
    "train": "trainer",
}

__getattr__ = lazy_names(__name__, _HOMES)
