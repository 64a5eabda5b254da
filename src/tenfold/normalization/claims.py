"""The claims of Ioffe & Szegedy 2015 and Wu & He 2018, and of a paper that follows each, as programs on real digits."""

from __future__ import annotations

import math

from tenfold.claims import Claim, Criterion
from tenfold.normalization import batch_size_measurements, measurements

BATCH = "Ioffe & Szegedy 2015, Batch Normalization, arXiv 1502.03167"
GROUP = "Wu & He 2018, Group Normalization, arXiv 1803.08494"
RECURRENT = "Cooijmans et al. 2016, Recurrent Batch Normalization, arXiv 1603.09025"
DIGITS = ("mnist_5k",)
NOT_NEGATIVE = (0.0, math.inf)
PERCENT = (0.0, 100.0)
DIFFERENCE = (-100.0, 100.0)
SMALL = "5,000 digits of 14 x 14 pixels and a network of four convolutions; the paper has ImageNet and ResNet-50."

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="normalization.fewer-steps",
        area="normalization",
        title="BN needs fewer steps",
        statement=(
            "With batch normalization the paper's network of three sigmoid layers reaches 90 % of right answers in less than "
            "half the steps with each side at its own best learning rate, and in at most a sixth of them at rate 0.2."
        ),
        paper=BATCH + ", sections 4.1 and 4.2",
        published=(
            "ImageNet to 72.2 %: 31.0 million steps without, 13.3 with BN at the same rate, 2.1 with BN at five times the rate."
        ),
        measure=measurements.fewer_steps,
        criteria=(
            Criterion("ratio_each_at_best", "at least", 2.0, statistic="geometric mean"),
            Criterion("ratio_at_0.2", "at least", 6.0, statistic="geometric mean"),
        ),
        units=dict.fromkeys(
            ("steps_plain_at_best", "steps_normalized_at_best", "steps_plain_at_0.2", "steps_normalized_at_0.2"),
            "steps",
        ),
        descriptions={
            "ratio_each_at_best": "steps without BN over steps with it, each at its best rate",
            "ratio_at_0.2": "steps without BN over steps with it at rate 0.2",
            "steps_plain_at_best": "steps without BN at its best rate",
            "steps_normalized_at_best": "steps with BN at its best rate",
            "steps_plain_at_0.2": "steps without BN at rate 0.2",
            "steps_normalized_at_0.2": "steps with BN at rate 0.2",
        },
        ranges=dict.fromkeys(
            (
                "ratio_each_at_best",
                "ratio_at_0.2",
                "steps_plain_at_best",
                "steps_normalized_at_best",
                "steps_plain_at_0.2",
                "steps_normalized_at_0.2",
            ),
            NOT_NEGATIVE,
        ),
        limits=(
            "Best rates are taken from a grid of four, from 0.8 to 6.4; accuracy is looked at every 25 steps. Plain SGD, as in "
            "the paper, without momentum; 4,000 grey digits, not 60,000 binary ones."
        ),
        needs=DIGITS,
    ),
    Claim(
        id="normalization.large-rate",
        area="normalization",
        title="BN trains at rates where the plain net does not",
        statement="At learning rate 12.8 the network with BN learns the digits, and the one without stays at chance.",
        paper=BATCH + ", sections 3.3 and 4.2.2",
        published="Inception at five times its learning rate: parameters without BN reached machine infinity; with BN it trains.",
        measure=measurements.large_rate,
        criteria=(
            Criterion("accuracy_normalized", "at least", 85.0, "%"),
            Criterion("accuracy_plain", "at most", 20.0, "%"),
        ),
        descriptions={
            "accuracy_normalized": "best accuracy with BN",
            "accuracy_plain": "best accuracy without BN",
        },
        units=dict.fromkeys(("accuracy_normalized", "accuracy_plain"), "%"),
        ranges=dict.fromkeys(("accuracy_normalized", "accuracy_plain"), PERCENT),
        limits="Three sigmoid layers and 1,500 steps at most; the run with BN ends at 90 %.",
        needs=DIGITS,
    ),
    Claim(
        id="normalization.deep-sigmoid",
        area="normalization",
        title="Deep sigmoid nets train",
        statement="A network of seven sigmoid layers learns with BN and stays at chance without it.",
        paper=BATCH + ", section 4.2.2",
        published="Inception with sigmoids: 69.8 % with BN, never beyond chance without.",
        measure=measurements.deep_sigmoid,
        criteria=(
            Criterion("accuracy_normalized", "at least", 80.0, "%"),
            Criterion("accuracy_plain", "at most", 20.0, "%"),
        ),
        descriptions={
            "accuracy_normalized": "best accuracy with BN",
            "accuracy_plain": "best accuracy without BN",
        },
        units=dict.fromkeys(("accuracy_normalized", "accuracy_plain"), "%"),
        ranges=dict.fromkeys(("accuracy_normalized", "accuracy_plain"), PERCENT),
        limits="400 steps, small Gaussian weights as in the paper; another initialisation can help the plain network, too.",
        needs=DIGITS,
    ),
    Claim(
        id="normalization.regularizes",
        area="normalization",
        title="BN regularizes",
        statement=(
            "Trained on 1,000 digits until each is known by heart, a network with BN makes fewer errors on other digits than "
            "the same network without."
        ),
        paper=BATCH + ", section 3.4",
        published="Observed to help generalization; no figure of this alone is given.",
        measure=measurements.regularizes,
        criteria=(
            Criterion("gain", "at least", 0.0, "points"),
            Criterion("training_error_plain", "at most", 0.5, "%"),
            Criterion("training_error_normalized", "at most", 0.5, "%"),
        ),
        descriptions={
            "gain": "error on unseen digits without BN less that with it",
            "error_plain": "error on unseen digits without BN",
            "error_normalized": "error on unseen digits with BN",
            "training_error_plain": "error in training without BN",
            "training_error_normalized": "error in training with BN",
        },
        units={
            "gain": "points",
            **dict.fromkeys(
                ("error_plain", "error_normalized", "training_error_plain", "training_error_normalized"), "%"
            ),
        },
        ranges={
            "gain": DIFFERENCE,
            **dict.fromkeys(
                ("error_plain", "error_normalized", "training_error_plain", "training_error_normalized"), PERCENT
            ),
        },
        seeds={"quick": 6},
        limits="One small network and one learning rate; what BN does for optimization is in the difference, too.",
        needs=DIGITS,
    ),
    Claim(
        id="normalization.dropout-helps-less",
        area="normalization",
        title="With BN, dropout helps less",
        statement="Dropout takes less off the error on unseen digits when the network has BN.",
        paper=BATCH + ", sections 3.4 and 4.2.1",
        published="BN-Inception trained without dropout at no loss; no comparison of the two gains is given.",
        measure=measurements.dropout_helps_less,
        criteria=(Criterion("difference", "at least", 0.0, "points"),),
        descriptions={
            "difference": "gain by dropout without BN less that with it",
            "gain_plain": "gain by dropout without BN",
            "gain_normalized": "gain by dropout with BN",
        },
        units=dict.fromkeys(("difference", "gain_plain", "gain_normalized"), "points"),
        ranges=dict.fromkeys(("difference", "gain_plain", "gain_normalized"), (-200.0, 200.0)),
        limits=(
            "Dropout of 0.2 after each of three layers, 1,000 digits to learn, rate 0.03. The gains are of a point or less; at "
            "rate 0.1, tried before on other seeds, they were alike, and dropout of 0.5 did harm on both sides."
        ),
        needs=DIGITS,
    ),
    Claim(
        id="normalization.group-independent-of-split",
        area="normalization",
        title="GN does not depend on the batch, bit for bit",
        statement=(
            "Outputs and input gradients of GN are the same in every bit whether a batch of 32 is given whole or in parts of "
            "16, 8, 4 or 2, in both memory layouts; those of BN are not."
        ),
        paper=GROUP + ", section 3",
        published="By definition: the computation is independent of batch sizes.",
        measure=batch_size_measurements.independence,
        criteria=(
            Criterion("differing_numbers", "at most", 0.0),
            Criterion("difference_of_batch_norm", "at least", 0.01),
        ),
        descriptions={
            "differing_numbers": "numbers of GN's outputs and gradients that differ between whole and parts",
            "difference_of_batch_norm": "largest difference of BN's outputs between a batch of 32 and two of 16, least case",
        },
        ranges=dict.fromkeys(("differing_numbers", "difference_of_batch_norm"), NOT_NEGATIVE),
        limits="One machine and one thread. Sums over samples, as the gradients of gamma and beta are, depend on their order.",
    ),
    Claim(
        id="normalization.small-batches",
        area="normalization",
        title="BN degrades below 8 samples and collapses at 2; GN is flat",
        statement=(
            "With statistics over 4 samples BN's error is higher than over 8, and over 2 it is more than ten points higher than "
            "over 32. GN's error moves by less than a point when the batch of 32 is worked off in parts of 2."
        ),
        paper=GROUP + ", table 2",
        published="BN with 32, 16, 8, 4, 2 images: 23.6, 23.7, 24.8, 27.3, 34.7 %; GN: 24.1, 24.2, 24.0, 24.2, 24.1 %.",
        measure=batch_size_measurements.small_batches,
        criteria=(
            Criterion("rise_from_8_to_4", "at least", 0.0, "points"),
            Criterion("rise_from_32_to_2", "at least", 10.0, "points"),
            Criterion("change_of_group", "at most", 1.0, "points"),
        ),
        descriptions={
            "rise_from_8_to_4": "BN's error over 4 samples less that over 8",
            "rise_from_32_to_2": "BN's error over 2 samples less that over 32",
            "change_of_group": "change of GN's error from the whole batch to parts of 2",
            **{f"error_batch_{size}": f"BN's error over {size} samples" for size in (32, 8, 4, 2)},
            "error_group": "GN's error",
        },
        units={
            **dict.fromkeys(("rise_from_8_to_4", "rise_from_32_to_2", "change_of_group"), "points"),
            **{f"error_batch_{size}": "%" for size in (32, 8, 4, 2)},
            "error_group": "%",
        },
        ranges={
            "rise_from_8_to_4": DIFFERENCE,
            "rise_from_32_to_2": DIFFERENCE,
            "change_of_group": PERCENT,
            **{f"error_batch_{size}": PERCENT for size in (32, 8, 4, 2)},
            "error_group": PERCENT,
        },
        limits=SMALL + " The last maps are one pixel, which makes the noise of small batches as large as it can be.",
        needs=DIGITS,
    ),
    Claim(
        id="normalization.batch-beats-group-at-32",
        area="normalization",
        title="BN beats GN at 32 samples",
        statement="With statistics over 32 samples BN's error is lower than GN's.",
        paper=GROUP + ", table 1",
        published="BN 23.6 %, GN 24.1 %.",
        measure=batch_size_measurements.batch_beats_group,
        criteria=(Criterion("difference", "at least", 0.0, "points"),),
        descriptions={
            "difference": "GN's error less BN's",
            "error_batch": "BN's error",
            "error_group": "GN's error",
        },
        units={"difference": "points", "error_batch": "%", "error_group": "%"},
        ranges={"difference": DIFFERENCE, "error_batch": PERCENT, "error_group": PERCENT},
        limits=SMALL,
        needs=DIGITS,
    ),
    Claim(
        id="normalization.layer-behind-group",
        area="normalization",
        title="LN is behind GN",
        statement="Layer normalization, one group, has a higher error than GN with 8 channels a group.",
        paper=GROUP + ", table 1",
        published="LN 25.3 %, GN 24.1 %.",
        measure=batch_size_measurements.layer_behind_group,
        criteria=(Criterion("difference", "at least", 0.0, "points"),),
        descriptions={
            "difference": "LN's error less GN's",
            "error_layer": "LN's error",
            "error_group": "GN's error",
        },
        units={"difference": "points", "error_layer": "%", "error_group": "%"},
        ranges={"difference": DIFFERENCE, "error_layer": PERCENT, "error_group": PERCENT},
        limits=SMALL + " With 16 to 64 channels, GN has 2 to 8 groups here and is not far from LN.",
        needs=DIGITS,
    ),
    Claim(
        id="normalization.instance-behind-group",
        area="normalization",
        title="IN is behind GN",
        statement="Instance normalization, a group a channel, has a higher error than GN.",
        paper=GROUP + ", table 1",
        published="IN 28.4 %, GN 24.1 %.",
        measure=batch_size_measurements.instance_behind_group,
        criteria=(Criterion("difference", "at least", 0.0, "points"),),
        descriptions={
            "difference": "IN's error less GN's",
            "error_instance": "IN's error",
            "error_group": "GN's error",
        },
        units={"difference": "points", "error_instance": "%", "error_group": "%"},
        ranges={"difference": DIFFERENCE, "error_instance": PERCENT, "error_group": PERCENT},
        limits=SMALL + " Maps of one pixel leave IN nothing but beta in the last layer: it cannot learn here at all.",
        needs=DIGITS,
    ),
    Claim(
        id="normalization.cross-over",
        area="normalization",
        title="The cross-over lies at about 24 samples",
        statement=(
            "The errors of BN and GN are equal at about 24 samples (16 to 36), as a published review has it. Measured here as a "
            "number with an interval; it is no constant."
        ),
        paper=GROUP + ", table 2, and a review's reading of it",
        published="The table puts the cross-over between 8 and 16 images; the review says about 24.",
        measure=batch_size_measurements.crossover,
        criteria=(
            Criterion("samples", "at least", 16.0, "samples", statistic="geometric mean"),
            Criterion("samples", "at most", 36.0, "samples", statistic="geometric mean"),
        ),
        descriptions={
            "samples": "samples at which the errors of BN and GN are equal",
            "error_batch_16": "BN's error over 16 samples",
            "error_batch_4": "BN's error over 4 samples",
            "error_group": "GN's error",
        },
        units={"samples": "samples", "error_batch_16": "%", "error_batch_4": "%", "error_group": "%"},
        ranges={
            "samples": (2.0, 32.0),
            "error_batch_16": PERCENT,
            "error_batch_4": PERCENT,
            "error_group": PERCENT,
        },
        expected="does not hold",
        limits=SMALL + " Measured between 2 and 32 samples, by interpolation along their logarithm.",
        needs=DIGITS,
    ),
    Claim(
        id="normalization.batch-of-one",
        area="normalization",
        title="BN cannot train with one image a step, GN can",
        statement=(
            "Trained one image at a time, a network with BN stays near chance, since a channel of one value leaves nothing but "
            "beta; the one with GN learns."
        ),
        paper=GROUP + ", section 1",
        published="GN works at any batch size; BN is not given for one image.",
        measure=batch_size_measurements.batch_of_one,
        criteria=(
            Criterion("error_batch", "at least", 75.0, "%"),
            Criterion("error_group", "at most", 25.0, "%"),
        ),
        descriptions={"error_batch": "error with BN", "error_group": "error with GN"},
        units={"error_batch": "%", "error_group": "%"},
        ranges={"error_batch": PERCENT, "error_group": PERCENT},
        limits=(
            "torch and Tenfold refuse a channel of one value in training; here beta stands for the output, the limit of the "
            "formula. A network whose maps stay large would train with BN as with instance normalization."
        ),
        needs=DIGITS,
    ),
    Claim(
        id="normalization.recurrent",
        area="normalization",
        title="Recurrent BN speeds up an LSTM",
        statement="An LSTM that reads digits pixel by pixel reaches 50 % of right answers in fewer steps with recurrent BN.",
        paper=RECURRENT + ", section 5.1",
        published="Sequential MNIST: 99.0 % with, 98.9 % without, and faster; permuted 95.4 and 90.2 %.",
        measure=measurements.recurrent,
        criteria=(Criterion("ratio_recurrent", "at least", 1.0, statistic="geometric mean"),),
        descriptions={
            "ratio_recurrent": "steps without BN over steps with recurrent BN",
            "ratio_sequence_wise": "steps without BN over steps with BN of the input alone",
            "steps_plain": "steps without BN",
            "steps_recurrent": "steps with recurrent BN",
        },
        units={"steps_plain": "steps", "steps_recurrent": "steps"},
        ranges=dict.fromkeys(
            ("ratio_recurrent", "ratio_sequence_wise", "steps_plain", "steps_recurrent"), NOT_NEGATIVE
        ),
        limits=(
            "Digits of 7 x 7, 49 steps, 48 units, one learning rate of Adam; accuracy is looked at every 10 steps. A step with "
            "BN costs more time. Final accuracy is not compared."
        ),
        needs=DIGITS,
    ),
)
