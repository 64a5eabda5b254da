"""Compiled samplers, counts and distances of the payoffs. Plain arrays; nothing of torch."""

from tenfold.raml.kernels.counting import count_by_distance
from tenfold.raml.kernels.distances import anchored_rows
from tenfold.raml.kernels.edit_samples import edit_rows, pad_rows, tally_paths
from tenfold.raml.kernels.greedy_paths import path_verdict, write_path
from tenfold.raml.kernels.limited_samples import end_weights, limited_rows, position_weights
from tenfold.raml.kernels.streams import row_outside, spread_seed
from tenfold.raml.kernels.substitutions import hamming_rows, short_hamming_rows

__all__ = [
    "anchored_rows",
    "count_by_distance",
    "edit_rows",
    "end_weights",
    "hamming_rows",
    "limited_rows",
    "pad_rows",
    "path_verdict",
    "position_weights",
    "row_outside",
    "short_hamming_rows",
    "spread_seed",
    "tally_paths",
    "write_path",
]
