"""The claims of Graves 2016, *Stochastic backpropagation through mixture density distributions*, as programs.

The paper derives the gradient and reports no experiment; what it says or what its readers ask is measured here.
"""

from __future__ import annotations

import math

from tenfold.claims import Claim, Criterion
from tenfold.mixture import measurements

PAPER = "Graves 2016, Stochastic Backpropagation through Mixture Density Distributions, arXiv 1607.05690"
DERIVATION = "A derivation; the paper reports no experiment."
NATS = {"gain": "nats", "bound_1": "nats", "bound_4": "nats"}
GAIN = {
    "gain": "gain of four components over one, unseen digits",
    "bound_1": "bound with one component, unseen digits",
    "bound_4": "bound with four components, unseen digits",
}
NOT_NEGATIVE = (0.0, math.inf)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="mixture.one-component",
        area="mixture",
        title="K = 1 is the usual reparameterisation",
        statement=(
            "With one component the gradients of means and deviations are those of x = mu + s eps, sample by sample, and "
            "the weight's gradient is zero: the question that a reviewer of the paper asks."
        ),
        paper=PAPER,
        published=DERIVATION,
        measure=measurements.one_component,
        criteria=(
            Criterion("difference_quantile", "at most", 1e-12),
            Criterion("difference_responsibility", "at most", 1e-12),
        ),
        descriptions={
            "difference_quantile": "largest difference from the usual gradient, quantile",
            "difference_responsibility": "largest difference from the usual gradient, responsibility",
        },
        ranges={"difference_quantile": NOT_NEGATIVE, "difference_responsibility": NOT_NEGATIVE},
        limits="Shown for D = 8 in double precision; the equality is exact in arithmetic.",
    ),
    Claim(
        id="mixture.means-and-deviations",
        area="mixture",
        title="Means and deviations: unbiased for K > 1",
        statement=(
            "For several components the quantile transform, the drawn component and its average over the responsibilities "
            "all estimate the gradient of means and deviations without bias; the average has the least variance of the two "
            "reparameterisations."
        ),
        paper=PAPER,
        published=DERIVATION + " The paper pairs its weight gradient with the drawn component.",
        measure=measurements.means_and_deviations,
        criteria=(
            Criterion("z2_quantile", "at most", 2.0),
            Criterion("z2_responsibility", "at most", 2.0),
            Criterion("z2_drawn_component", "at most", 2.0),
            Criterion("variance_ratio", "at most", 1.0, statistic="geometric mean"),
        ),
        descriptions={
            "z2_quantile": "mean square deviation in standard errors, quantile",
            "z2_responsibility": "mean square deviation in standard errors, responsibility",
            "z2_drawn_component": "mean square deviation in standard errors, drawn component",
            "variance_ratio": "variance of the average over the variance of the drawn component",
        },
        ranges=dict.fromkeys(("z2_quantile", "z2_responsibility", "z2_drawn_component"), NOT_NEGATIVE),
        limits=(
            "One function (a sum of cosines) and random mixtures of three components in four dimensions. z2 is the mean "
            "square deviation from the exact gradient in standard errors: 1 without bias, and growing with the number of "
            "samples with one."
        ),
    ),
    Claim(
        id="mixture.weights-unbiased",
        area="mixture",
        title="Weights: unbiased, Gumbel-softmax is not",
        statement=(
            "The gradient of the mixture weights through the quantile transform is unbiased; relaxing the choice of the "
            "component by Gumbel-softmax at temperature 0.5 is not."
        ),
        paper=PAPER,
        published=DERIVATION,
        measure=measurements.logits_bias,
        criteria=(
            Criterion("z2_quantile", "at most", 2.0),
            Criterion("bias_gumbel_softmax", "at least", 0.05, "of the gradient"),
        ),
        units={"bias_quantile": "of the gradient"},
        descriptions={
            "z2_quantile": "mean square deviation in standard errors, quantile",
            "bias_quantile": "deviation from the exact gradient, quantile (Monte Carlo error)",
            "bias_gumbel_softmax": "deviation from the exact gradient, Gumbel-softmax at temperature 0.5",
        },
        ranges=dict.fromkeys(("z2_quantile", "bias_quantile", "bias_gumbel_softmax"), NOT_NEGATIVE),
        limits=(
            "Three components in two dimensions, one function. z2 is the mean square deviation from the exact gradient in "
            "standard errors, 1 without bias. Variance is another claim."
        ),
    ),
    Claim(
        id="mixture.sampling-estimator",
        area="mixture",
        title="Gradient from samples alone: error falls as 1/sqrt(M)",
        statement=(
            "For a density that offers only a log density and a sampler, the integral in the gradient can be estimated from "
            "M samples, with an error that falls as one over the square root of M."
        ),
        paper=PAPER + ", the sampling form of Eq. 6",
        published="The estimator is described; no figure is given.",
        measure=measurements.sampling_estimator,
        criteria=(Criterion("slope", "at most", -0.4), Criterion("slope", "at least", -0.6)),
        units={"slope": "log error per log M"},
        descriptions={
            "slope": "slope of the error over the samples, both in logarithms",
            "error_at_1000": "median relative error with 1,000 samples",
        },
        ranges={"error_at_1000": NOT_NEGATIVE},
        limits="One dimension.",
    ),
    Claim(
        id="mixture.separation",
        area="mixture",
        title="Far modes: pathwise fails, the combination does not",
        statement=(
            "The pathwise gradient of the weights loses its advantage as the modes separate, and its variance grows without "
            "bound; combined with the score, the variance is at least five times lower than either at distances from 1 to 4 "
            "and never more than a tenth above the better one."
        ),
        paper=PAPER,
        published="Not discussed in the paper; the limit of the method, stated openly.",
        measure=measurements.separation,
        criteria=(
            Criterion("pathwise_over_score_at_8", "at least", 100.0, statistic="geometric mean"),
            Criterion("least_gain_from_1_to_4", "at least", 5.0, statistic="geometric mean"),
            Criterion("worst_ratio_to_the_better", "at most", 1.1, statistic="geometric mean"),
        ),
        descriptions={
            "pathwise_over_score_at_8": "pathwise variance over score variance at distance 8",
            "least_gain_from_1_to_4": "variance of the better of the two over the combination's, least from 1 to 4",
            "worst_ratio_to_the_better": "variance of the combination over the better of the two's, worst distance",
        },
        limits="Two equal modes in one dimension, f = x. For f = cos x the gain at these distances is 1.3 to 1.9.",
    ),
    Claim(
        id="mixture.multimodal-target",
        area="mixture",
        title="A multimodal target needs a mixture",
        statement="On a target of eight modes, variational fitting with eight components closes the gap that one leaves.",
        paper=PAPER,
        published="The use that the paper proposes; no figure is given.",
        measure=measurements.multimodal_target,
        criteria=(Criterion("gain", "at least", 0.5, "nats"), Criterion("gap_8", "at most", 0.3, "nats")),
        units={"gap_1": "nats", "gap_8": "nats", "gain": "nats"},
        descriptions={
            "gap_1": "gap of the bound to the evidence, one component",
            "gap_8": "gap of the bound to the evidence, eight components",
            "gain": "what eight components close of the gap",
        },
        ranges={"gap_1": NOT_NEGATIVE, "gap_8": NOT_NEGATIVE},
        limits="A target in two dimensions whose modes overlap slightly; random starts of the components.",
    ),
    Claim(
        id="mixture.digits-elbo",
        area="mixture",
        title="Digits: mixture posterior against K = 1, ELBO",
        statement=(
            "An autoencoder of handwritten digits with a mixture of four as its posterior reaches a better evidence lower "
            "bound on unseen digits than one with a single Gaussian, codes of length 1."
        ),
        paper=PAPER,
        published="The use that the paper proposes; no figure is given.",
        measure=measurements.digits_elbo,
        criteria=(Criterion("gain", "at least", 0.0, "nats"),),
        units=NATS,
        descriptions=GAIN,
        seeds={"quick": 12, "full": 12},
        limits=(
            "Small images and networks. The gain differs between random starts by more than its size, so that five seeds do "
            "not tell it from zero. With codes of length 2 the ELBO gives up the extra components: see that claim."
        ),
        needs=("digits",),
    ),
    Claim(
        id="mixture.digits-stratified",
        area="mixture",
        title="Digits: mixture posterior against K = 1, stratified bound",
        statement=(
            "Trained on the stratified importance bound, which keeps all components in use, the mixture of four reaches a "
            "better bound on unseen digits than a single Gaussian with as many samples."
        ),
        paper="Morningstar et al. 2020, Automatic Differentiation Variational Inference with Mixtures, arXiv 2003.01687",
        published="Reports that the plain bound disfavours multimodal posteriors and that the stratified bound helps.",
        measure=measurements.digits_stratified,
        criteria=(Criterion("gain", "at least", 0.0, "nats"),),
        units=NATS,
        descriptions=GAIN,
        seeds={"quick": 5},
        limits="Small images and networks, codes of length 1.",
        needs=("digits",),
    ),
    Claim(
        id="mixture.digits-elbo-two-dimensions",
        area="mixture",
        title="Digits, codes of length 2: mixture against K = 1, ELBO",
        statement="The same comparison of the evidence lower bound with codes of length 2.",
        paper=PAPER,
        published="No figure; Morningstar et al. 2020 report that the ELBO alone gives up components.",
        measure=measurements.digits_elbo_two_dimensions,
        criteria=(Criterion("gain", "at least", 0.1, "nats"),),
        units=NATS,
        descriptions=GAIN,
        seeds={"quick": 5},
        expected="does not hold",
        limits=(
            "With room for digits side by side the posteriors have one mode each. What is left to gain is small beside the "
            "differences between random starts, so that few seeds may decide nothing."
        ),
        needs=("digits",),
    ),
)
