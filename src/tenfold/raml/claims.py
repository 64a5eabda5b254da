"""The claims of Norouzi et al. 2016, *Reward augmented maximum likelihood for neural structured prediction*, as programs.

The paper's tables are of speech (TIMIT) and translation (WMT'14), whose data nobody may pass on; the same comparison is made
here on the pronunciations of English words. The theory is checked on strings that can be enumerated.
"""

from __future__ import annotations

import math

from tenfold.claims import Claim, Criterion
from tenfold.raml import measurements

PAPER = "Norouzi et al. 2016, Reward Augmented Maximum Likelihood for Neural Structured Prediction, arXiv 1609.00150"
DERIVATION = "A derivation; no figure."
NOT_NEGATIVE = (0.0, math.inf)
POINTS = "percentage points"
PER_CENT = (0.0, math.inf)  # error rates may exceed 100 %

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="raml.same-optimum",
        area="raml",
        title="RAML and expected reward have one optimum",
        statement=(
            "Minimizing KL(q || p), which is RAML, and KL(p || q), which is expected reward with an entropy term of the same "
            "temperature, lead to the same distribution where the model can represent q."
        ),
        paper=PAPER + ", section 2.1",
        published=DERIVATION,
        measure=measurements.same_optimum,
        criteria=(
            Criterion("forward_kl_raml", "at most", 1e-6, "nats"),
            Criterion("reverse_kl_raml", "at most", 1e-6, "nats"),
            Criterion("forward_kl_reward", "at most", 1e-6, "nats"),
            Criterion("reverse_kl_reward", "at most", 1e-6, "nats"),
        ),
        units=dict.fromkeys(("forward_kl_raml", "reverse_kl_raml", "forward_kl_reward", "reverse_kl_reward"), "nats"),
        descriptions={
            "forward_kl_raml": "KL(q || p) of the model trained by RAML",
            "reverse_kl_raml": "KL(p || q) of the model trained by RAML",
            "forward_kl_reward": "KL(q || p) of the model trained by expected reward",
            "reverse_kl_reward": "KL(p || q) of the model trained by expected reward",
            "difference": "largest difference of the two models' probabilities",
            "difference_restricted": "the same where the model cannot represent q",
        },
        ranges=dict.fromkeys(
            (
                "forward_kl_raml",
                "reverse_kl_raml",
                "forward_kl_reward",
                "reverse_kl_reward",
                "difference",
                "difference_restricted",
            ),
            NOT_NEGATIVE,
        ),
        limits=(
            "Strings of four out of three tokens, the Hamming payoff, exact gradients. Real models cannot represent q; the "
            "last number shows that the two objectives then differ."
        ),
    ),
    Claim(
        id="raml.gradient-variance",
        area="raml",
        title="Less variance than REINFORCE far from the optimum",
        statement=(
            "One sample's gradient of RAML, from a fixed distribution, has less variance than REINFORCE's, from the model, "
            "even with the best constant baseline, for a model that knows nothing yet and half way to the optimum."
        ),
        paper=PAPER + ", section 2.2",
        published="Said in words; no figure.",
        measure=measurements.gradient_variance,
        criteria=(
            Criterion("ratio_start", "at least", 1.0, statistic="geometric mean"),
            Criterion("ratio_start_baseline", "at least", 1.0, statistic="geometric mean"),
            Criterion("ratio_half_way_baseline", "at least", 1.0, statistic="geometric mean"),
        ),
        descriptions={
            "ratio_start": "REINFORCE's variance over RAML's, a random model",
            "ratio_start_baseline": "the same with the best constant baseline",
            "ratio_half_way_baseline": "the same with the baseline, half way to the optimum",
            "ratio_near_optimum_baseline": "the same with the baseline, nine tenths of the way",
        },
        limits=(
            "Logits of all strings of five out of three tokens, the Hamming payoff, exact variances. Near the optimum the "
            "order turns round: there REINFORCE with the entropy's term has next to no variance, and RAML keeps that of q."
        ),
    ),
    Claim(
        id="raml.exact-samplers",
        area="raml",
        title="The samplers are exact",
        statement=(
            "Samples of the Hamming and of the edit payoff follow the enumerated distribution; the same test finds the fault "
            "when the rejection step is left out."
        ),
        paper=PAPER + ", section 2.3",
        published="The paper draws the number of edits by an upper bound of the counts: not exact.",
        measure=measurements.samplers,
        criteria=(
            Criterion("chi_square_hamming", "at most", 2.0),
            Criterion("chi_square_edit", "at most", 1.5),
            Criterion("chi_square_edit_without_rejection", "at least", 2.0),
        ),
        descriptions={
            "chi_square_hamming": "chi-square a degree of freedom, Hamming",
            "chi_square_edit": "chi-square a degree of freedom, edit distance",
            "chi_square_edit_without_rejection": "the same without the rejection step",
        },
        ranges=dict.fromkeys(
            ("chi_square_hamming", "chi_square_edit", "chi_square_edit_without_rejection"), NOT_NEGATIVE
        ),
        limits=(
            "One reference of four tokens out of two (Hamming: of six), where the rejection step matters most. 1 is what "
            "chance gives."
        ),
    ),
    Claim(
        id="raml.label-smoothing",
        area="raml",
        title="Hamming with a clean history is label smoothing",
        statement=(
            "Where labels are drawn from the Hamming payoff and the decoder reads the right history, the expected loss is the "
            "cross-entropy with label smoothing rate * V / (V - 1)."
        ),
        paper=PAPER,
        published="Not in the paper; it says where the method stands beside its best-known relative.",
        measure=measurements.label_smoothing,
        criteria=(Criterion("difference", "at most", 1e-12),),
        descriptions={"difference": "largest difference from torch's label smoothing"},
        ranges={"difference": NOT_NEGATIVE},
        limits="RAML itself lets the decoder read the drawn targets, too; that is the difference between the two.",
    ),
    Claim(
        id="raml.step-cost",
        area="raml",
        title="A step costs what one of maximum likelihood costs",
        statement=(
            "Drawing the targets leaves the cost of a training step as it is, within a few per cent: the length-preserving "
            "Hamming payoff shows it; the edit payoff's targets are longer besides."
        ),
        paper=PAPER + ", section 2.2",
        published="Said in words; no figure.",
        measure=measurements.step_cost,
        criteria=(
            Criterion("ratio_hamming", "at most", 1.1, statistic="geometric mean"),
            Criterion("sampling_share_edit", "at most", 0.1),
        ),
        descriptions={
            "ratio_hamming": "processor time of a step over that of maximum likelihood, Hamming",
            "ratio_edit": "the same, edit distance",
            "sampling_share_hamming": "share of a step that drawing takes, Hamming",
            "sampling_share_edit": "share of a step that drawing takes, edit distance",
        },
        ranges=dict.fromkeys(("sampling_share_hamming", "sampling_share_edit"), (0.0, 1.0)),
        limits="A small network on a processor, batches of 128 words. On larger networks the share is less.",
    ),
    Claim(
        id="raml.overfitting",
        area="raml",
        title="Fewer phone errors where ML overfits",
        statement=(
            "Trained for many epochs on few words and without dropout, a model of pronunciations by RAML with the edit payoff "
            "at temperature 0.7 makes fewer phone errors on unseen words than one by maximum likelihood."
        ),
        paper=PAPER + ", table 1 (phones of TIMIT)",
        published=(
            "Phone error rates on TIMIT fall by about two percentage points; of other data (speech), with temperatures from "
            "0.6 to 1.0."
        ),
        measure=measurements.overfitting,
        criteria=(Criterion("gain", "at least", 0.0, POINTS),),
        units={
            "gain": POINTS,
            "gain_over_smoothing": POINTS,
            "gain_in_words": POINTS,
            "phones_ml": "%",
            "phones_smoothing": "%",
            "phones_raml": "%",
        },
        descriptions={
            "gain": "phone error rate of ML less that of RAML",
            "gain_over_smoothing": "phone error rate of label smoothing 0.1 less that of RAML",
            "gain_in_words": "share of words with an error, ML less RAML",
            "phones_ml": "phone error rate, ML",
            "phones_smoothing": "phone error rate, label smoothing 0.1",
            "phones_raml": "phone error rate, RAML",
        },
        ranges=dict.fromkeys(("phones_ml", "phones_smoothing", "phones_raml"), PER_CENT),
        seeds={"quick": 5, "full": 3},
        limits=(
            "Full: 4,000 words, 700 steps, width 128, 3,000 unseen words, temperatures 0.6, 0.7 and 0.8. Quick is smaller: "
            "temperature 0.7 alone; its 500 steps were chosen on other seeds, after RAML had not gained at 250 steps, where "
            "ML did not overfit yet. Label smoothing stands beside it because it gets most of the gain for nothing."
        ),
        needs=("cmudict",),
    ),
    Claim(
        id="raml.more-data",
        area="raml",
        title="More data and dropout: nothing left to gain",
        statement="The same comparison where maximum likelihood does not overfit: more words, few epochs, dropout 0.2.",
        paper=PAPER + ", table 1",
        published="No such case is reported.",
        measure=measurements.more_data,
        criteria=(Criterion("gain", "at least", 0.0, POINTS),),
        units={"gain": POINTS, "phones_ml": "%", "phones_raml": "%"},
        descriptions={
            "gain": "phone error rate of ML less that of RAML",
            "phones_ml": "phone error rate, ML",
            "phones_raml": "phone error rate, RAML",
        },
        ranges=dict.fromkeys(("phones_ml", "phones_raml"), PER_CENT),
        seeds={"quick": 3, "full": 3},
        expected="does not hold",
        limits="Full: 10,000 words, 1,200 steps, width 128, temperatures 0.6, 0.7 and 0.8. Quick is smaller.",
        needs=("cmudict",),
    ),
)
