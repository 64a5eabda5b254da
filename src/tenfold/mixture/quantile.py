r"""The quantile transform of a Gaussian mixture: how a sample moves when the parameters move.

Graves 2016, *Stochastic backpropagation through mixture density distributions* (arXiv 1607.05690): a sample ``x`` of a
density is the image of fixed uniform numbers ``u`` under the inverse of the conditional distribution functions,
``u_d = T_d(x) = F(x_d | x_<d)``, so its derivative follows from the implicit function theorem, ``dx = -J^{-1} dT`` with
``J = dT/dx`` lower triangular. Nothing needs to be inverted numerically: any exact sample has the right law.

For a mixture with weights ``pi_k = softmax(a)_k`` and diagonal components, with ``z_kd = (x_d - loc_kd)/scale_kd``, the
normal density ``N_kd = phi(z_kd)/scale_kd`` and distribution function ``Phi_kd``, define the prefix weights
``w_kd ~ pi_k prod_{i<d} N_ki`` (normalised over ``k``). Then

.. math::
    T_d = \sum_k w_{kd} \Phi_{kd}, \quad f_d = \sum_k w_{kd} N_{kd} = J_{dd}, \quad
    r_{kd} = w_{kd} N_{kd} / f_d = w_{k,d+1}, \quad
    J_{dj} = -\sum_k c_{kd} z_{kj} / s_{kj} \;(j < d), \quad c_{kd} = w_{kd} (\Phi_{kd} - T_d).

Below its diagonal ``J`` has rank ``K``, so solving ``J^T y = g`` from the last dimension to the first needs only the
``K`` running sums ``A_k = sum_{i>d} b_i rho_ki`` with ``rho_kd = c_kd / f_d``:

.. math::
    b_d = g_d + \sum_k \tfrac{z_{kd}}{s_{kd}} A_k, \quad
    \bar\mu_{kd} = b_d r_{kd} - \tfrac{z_{kd}}{s_{kd}} A_k, \quad
    \bar s_{kd} = \bar\mu_{kd} z_{kd} + \tfrac{A_k}{s_{kd}}, \quad
    A_k \mathrel{+}= b_d \rho_{kd}, \quad \bar a_k = -A_k.

For a full covariance with Cholesky factor ``L_k``, ``z_k = L_k^{-1} (x - loc_k)`` by one triangular solve, the
conditional of ``x_d`` is normal with deviation ``L_k[d, d]``, and with
``t_k = (z_kd A_k + sum_{i>d} L_k[i, d] y_ki) / L_k[d, d]``:
``b = g_d + sum_k t_k``, ``y_kd = b r_kd - t_k``, gradients ``y_k`` for ``loc_k`` and
``tril(y_k z_k^T) + diag(A_kd / L_k[d, d])`` for ``L_k`` (``A_kd`` before step ``d``).

Every function here is made of differentiable torch operations on any device; it is the reference of the compiled
kernels and gives the derivatives of higher order. Tails are exact: with Mills' ratio ``m(t) = Phi(-t)/phi(t)`` the
quotient ``w_kd Phi(-|z|)/f_d`` is ``r_kd s_kd m(|z|)``, which neither underflows nor cancels.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def mills_ratio(t: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Mills' ratio of the standard normal, ``m(t) = Phi(-t) / phi(t) = sqrt(pi/2) erfcx(t / sqrt 2)``.

    >>> mills_ratio(torch.tensor([0.0, 30.0], dtype=torch.float64))
    tensor([1.2533, 0.0333], dtype=torch.float64)
    """
    return _SQRT_HALF_PI * torch.special.erfcx(t * _SQRT_HALF)


def normal_cdf(z: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The standard normal distribution function, exact in its lower tail, where ``torch.special.ndtr`` is 0 below -6.

    >>> normal_cdf(torch.tensor([-9.0, 0.0]))
    tensor([1.1286e-19, 5.0000e-01])
    """
    return 0.5 * torch.erfc(z * -_SQRT_HALF)


def log_normal(z: Float[Tensor, "*shape"], scale: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Log density of a normal with deviation ``scale`` at ``z`` standard deviations from its mean."""
    return -0.5 * z.square() - scale.log() - _HALF_LOG_TWO_PI


def masked_log_softmax(logits: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch K"]:
    """Log softmax in which a component of weight zero (logit -inf) stays at -inf and receives the gradient zero."""
    return torch.log_softmax(logits, -1)


def _prefix_log_weights(
    log_pi: Float[Tensor, "*#rows K"], log_n: Float[Tensor, "*rows K D"]
) -> tuple[Float[Tensor, "*rows K D"], Float[Tensor, "*rows 1 D"], Float[Tensor, "*rows K D"]]:
    """``(log w, log f, r)``: log weights of each prefix, conditional log densities, posterior of each prefix."""
    # Normalising after each dimension keeps the leading component near log weight 0, exact in float32 at any D.
    log_w, log_f = [], []
    running = log_pi.expand(log_n.shape[:-1])
    for d in range(log_n.shape[-1]):
        log_w.append(running)
        running = running + log_n[..., d]
        normalizer = torch.logsumexp(running, -1, keepdim=True)
        log_f.append(normalizer)
        running = running - normalizer
    return torch.stack(log_w, -1), torch.stack(log_f, -1), torch.stack([*log_w[1:], running], -1).exp()


def _transported_mass(
    log_w: Float[Tensor, "*rows K D"],
    log_f: Float[Tensor, "*rows 1 D"],
    r: Float[Tensor, "*rows K D"],
    z: Float[Tensor, "*rows K D"],
    deviation: Float[Tensor, "..."],
) -> Float[Tensor, "*rows K D"]:
    """``rho = w (Phi - T) / f``, summed on whichever side of ``x_d`` holds less than half of the mass."""
    tail = r * deviation * mills_ratio(z.abs())  # w Phi(-|z|) / f
    # Where the whole mass is needed it is at most twice the smaller side; the clamp only keeps unused entries finite.
    whole = (log_w - log_f).clamp(max=math.log(torch.finfo(z.dtype).max) / 4).exp()  # w / f
    lower = torch.where(z < 0, tail, whole - tail)
    upper = torch.where(z < 0, whole - tail, tail)
    lower_sum, upper_sum = lower.sum(-2, keepdim=True), upper.sum(-2, keepdim=True)
    w = log_w.exp()
    return torch.where(lower_sum < upper_sum, lower - w * lower_sum, w * upper_sum - upper)


def diagonal_gradients(
    g: Float[Tensor, "*rows D"],
    x: Float[Tensor, "*rows D"],
    logits: Float[Tensor, "*#rows K"],
    loc: Float[Tensor, "*#rows K D"],
    scale: Float[Tensor, "*#rows K D"],
) -> tuple[Float[Tensor, "*rows K"], Float[Tensor, "*rows K D"], Float[Tensor, "*rows K D"]]:
    """Vector-Jacobian products ``g dx/dlogits``, ``g dx/dloc``, ``g dx/dscale`` of the quantile transform, per row.

    Args:
        g: Upstream gradient.
        x: Samples.
        logits: Unnormalised log weights; -inf is a component of weight zero.
        loc: Means.
        scale: Standard deviations, positive.
    """
    z = (x.unsqueeze(-2) - loc) / scale
    log_n = log_normal(z, scale)
    log_w, log_f, r = _prefix_log_weights(masked_log_softmax(logits), log_n)
    rho = _transported_mass(log_w, log_f, r, z, scale)
    slope = z / scale
    a = torch.zeros_like(z[..., 0])
    columns, sums = [], []
    for d in range(x.shape[-1] - 1, -1, -1):
        pull = slope[..., d] * a
        b = (g[..., d] + pull.sum(-1)).unsqueeze(-1)
        columns.append(b * r[..., d] - pull)
        sums.append(a)
        a = a + b * rho[..., d]
    y = torch.stack(columns[::-1], -1)
    return -a, y, y * z + torch.stack(sums[::-1], -1) / scale


def cholesky_gradients(
    g: Float[Tensor, "*rows D"],
    x: Float[Tensor, "*rows D"],
    logits: Float[Tensor, "*#rows K"],
    loc: Float[Tensor, "*#rows K D"],
    scale_tril: Float[Tensor, "*#rows K D D"],
) -> tuple[Float[Tensor, "*rows K"], Float[Tensor, "*rows K D"], Float[Tensor, "*rows K D D"]]:
    """The same products for full covariances given by their lower Cholesky factors; O(K D^2) a row, no inverse."""
    z = whiten(x, loc, scale_tril)
    deviation = scale_tril.diagonal(dim1=-2, dim2=-1)
    log_w, log_f, r = _prefix_log_weights(masked_log_softmax(logits), log_normal(z, deviation))
    rho = _transported_mass(log_w, log_f, r, z, deviation)
    a = torch.zeros_like(z[..., 0])
    later = torch.zeros_like(z)  # sum over the dimensions already done of L[i, :] y_i
    columns, sums = [], []
    for d in range(x.shape[-1] - 1, -1, -1):
        t = (z[..., d] * a + later[..., d]) / deviation[..., d]
        b = (g[..., d] + t.sum(-1)).unsqueeze(-1)
        y = b * r[..., d] - t
        columns.append(y)
        sums.append(a)
        later = later + scale_tril[..., d, :] * y.unsqueeze(-1)
        a = a + b * rho[..., d]
    y = torch.stack(columns[::-1], -1)
    grad_tril = torch.tril(y.unsqueeze(-1) * z.unsqueeze(-2)) + torch.diag_embed(
        torch.stack(sums[::-1], -1) / deviation
    )
    return -a, y, grad_tril


def whiten(
    x: Float[Tensor, "... D"], loc: Float[Tensor, "*batch K D"], scale_tril: Float[Tensor, "*batch K D D"]
) -> Float[Tensor, "... K D"]:
    """``z_k = L_k^{-1} (x - loc_k)`` by one triangular solve per component."""
    difference = (x.unsqueeze(-2) - loc).unsqueeze(-1)
    return torch.linalg.solve_triangular(scale_tril, difference, upper=False).squeeze(-1)


def posterior(
    x: Float[Tensor, "*rows D"],
    logits: Float[Tensor, "*#rows K"],
    loc: Float[Tensor, "*#rows K D"],
    scale: Float[Tensor, "..."],
) -> tuple[Float[Tensor, "*rows K"], Float[Tensor, "*rows K D"]]:
    """Responsibilities ``r_k(x)`` and whitened differences ``z``; ``scale`` is (.., K, D) or (.., K, D, D)."""
    if scale.dim() == loc.dim() + 1:
        z = whiten(x, loc, scale)
        deviation = scale.diagonal(dim1=-2, dim2=-1)
    else:
        z = (x.unsqueeze(-2) - loc) / scale
        deviation = scale
    log_joint = masked_log_softmax(logits) + log_normal(z, deviation).sum(-1)
    return torch.softmax(log_joint, -1), z


def responsibility_gradients(
    g: Float[Tensor, "*rows D"],
    x: Float[Tensor, "*rows D"],
    logits: Float[Tensor, "*#rows K"],
    loc: Float[Tensor, "*#rows K D"],
    scale: Float[Tensor, "..."],
) -> tuple[Float[Tensor, "*rows K D"], Float[Tensor, "..."]]:
    """``(r_k g, r_k g z)``: the gradient through the drawn component, averaged over which it may have been.

    The conditional expectation given ``x`` of the usual reparameterisation of the drawn component, so unbiased with no
    more variance (Rao-Blackwell); for a Cholesky factor the second is ``tril(r_k g z^T)``.
    """
    r, z = posterior(x, logits, loc, scale)
    grad_loc = r.unsqueeze(-1) * g.unsqueeze(-2)
    if scale.dim() == loc.dim() + 1:
        return grad_loc, torch.tril(grad_loc.unsqueeze(-1) * z.unsqueeze(-2))
    return grad_loc, grad_loc * z
