"""Samples that carry gradients: the autograd functions behind ``rsample``.

Graves 2016, *Stochastic backpropagation through mixture density distributions* (arXiv 1607.05690), Eq. 1-6. The forward
value is a sample that was drawn without gradients; the backward pass says how it would move with the parameters. Two
fields are offered, both unbiased:

- ``"quantile"``: the paper's transform for logits, means and deviations (module ``quantile``);
- ``"responsibility"``: the quantile transform for the logits and, for means and deviations, the usual
  reparameterisation of the drawn component averaged over the posterior of which component was drawn: never more
  variance than the drawn component, and no recursion.

The sample is saved as the *output* of its function, so that a second derivative sees the dependence of ``x`` on the
parameters; then, and on devices other than the CPU, the formulas run as differentiable torch operations. A first
derivative on the CPU runs the compiled kernel through a custom operator, known to ``torch.compile`` and ``torch.vmap``.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tenfold.mixture import quantile

Estimator = Literal["responsibility", "quantile"]
ESTIMATORS: tuple[Estimator, ...] = ("responsibility", "quantile")


def move_with_parameters(
    x: Float[Tensor, "*sample_and_batch D"],
    logits: Float[Tensor, "*batch K"],
    loc: Float[Tensor, "*batch K D"],
    scale: Float[Tensor, "*batch K *D_or_DD"],
    estimator: Estimator = "responsibility",
) -> Float[Tensor, "*sample_and_batch D"]:
    """The same samples with the derivative of ``x`` in the mixture's parameters attached.

    Args:
        x: Samples of the mixture, drawn without gradients; leading sample dimensions before the batch.
        logits: Unnormalised log weights.
        loc: Means.
        scale: Standard deviations (.., K, D), or lower Cholesky factors (.., K, D, D).
        estimator: Which field moves means and deviations, see the module.

    >>> x = torch.zeros(2, 1)
    >>> loc = torch.tensor([[[-1.0], [1.0]]] * 2, requires_grad=True)
    >>> move_with_parameters(x, torch.zeros(2, 2), loc, torch.ones(2, 2, 1)).sum().backward()
    >>> loc.grad.squeeze(-1)  # at x = 0 both components are equally responsible
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    batch = logits.shape[:-1]
    samples = x.shape[: x.dim() - 1 - len(batch)].numel()
    rows = x.reshape(samples, batch.numel(), x.shape[-1])
    flat = (p.reshape(batch.numel(), *p.shape[len(batch) :]) for p in (logits, loc, scale))
    moved: Tensor = _MoveWithParameters.apply(rows, *flat, estimator)
    return moved.reshape(x.shape)


class _MoveWithParameters(torch.autograd.Function):
    """Identity on ``x`` (S, B, D); the backward pass distributes its gradient over logits, means and deviations."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, logits: Tensor, loc: Tensor, scale: Tensor, estimator: Estimator) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, logits, loc, scale, ctx.estimator = inputs
        ctx.save_for_backward(output, logits, loc, scale)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, logits, loc, scale = ctx.saved_tensors
        _, need_logits, need_loc, need_scale, _ = ctx.needs_input_grad
        # The quantile field gives all three together; otherwise means and deviations need no recursion.
        recursive = need_logits or ctx.estimator == "quantile"
        if torch.is_grad_enabled() or scale.dim() == loc.dim() + 1:
            gradients = torch_gradients(g, x, logits, loc, scale, ctx.estimator, recursive)
        else:
            gradients = torch.ops.tenfold.mixture_gradients(g, x, logits, loc, scale, ctx.estimator, recursive)
        grad_logits, grad_loc, grad_scale = gradients
        return (
            None,
            grad_logits.sum(0) if need_logits else None,
            grad_loc if need_loc else None,
            grad_scale if need_scale else None,
            None,
        )


def first_derivative_only(
    gradient: Float[Tensor, "*shape"], parameter: Float[Tensor, "..."], message: str
) -> Float[Tensor, "*shape"]:
    """The same gradient, whose own derivative raises a RuntimeError; for the backward passes of estimates.

    ``once_differentiable`` does not see to that: where the upstream gradient is a constant, as that of a loss is, the
    terms of the second derivative which autograd knows of would pass for all of it.

    Args:
        gradient: Result of a backward pass.
        parameter: Any tensor that requires a gradient; ties the refusal to the graph.
        message: What the error says.
    """
    if not torch.is_grad_enabled():
        return gradient
    refused: Tensor = _FirstDerivativeOnly.apply(gradient, parameter, message)
    return refused


class _FirstDerivativeOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, parameter: Tensor, message: str) -> Tensor:
        ctx.message = message
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(ctx.message)


def torch_gradients(
    g: Float[Tensor, "S B D"],
    x: Float[Tensor, "S B D"],
    logits: Float[Tensor, "B K"],
    loc: Float[Tensor, "B K D"],
    scale: Float[Tensor, "..."],
    estimator: Estimator,
    recursive: bool,
) -> tuple[Float[Tensor, "S B K"], Float[Tensor, "B K D"], Float[Tensor, "..."]]:
    """Reference of the compiled operator: gradients for each sample's logits, and summed for means and deviations."""
    working = torch.promote_types(x.dtype, torch.float32)  # half precisions are computed in float32
    result = x.dtype
    g, x, logits, loc, scale = (t.to(working) for t in (g, x, logits, loc, scale))
    grad_logits = torch.zeros((*x.shape[:2], logits.shape[-1]), dtype=working, device=x.device)
    if recursive:
        transform = quantile.cholesky_gradients if scale.dim() == loc.dim() + 1 else quantile.diagonal_gradients
        grad_logits, grad_loc, grad_scale = transform(g, x, logits, loc, scale)
    if estimator == "responsibility":
        grad_loc, grad_scale = quantile.responsibility_gradients(g, x, logits, loc, scale)
    return grad_logits.to(result), grad_loc.sum(0).to(result), grad_scale.sum(0).to(result)


@torch.library.custom_op(
    "tenfold::mixture_gradients",
    mutates_args=(),
    schema="(Tensor g, Tensor x, Tensor logits, Tensor loc, Tensor scale, str estimator, bool recursive)"
    " -> (Tensor, Tensor, Tensor)",
)
def _mixture_gradients(
    g: Tensor, x: Tensor, logits: Tensor, loc: Tensor, scale: Tensor, estimator: Estimator, recursive: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Per-sample gradients of the logits (S, B, K) and summed gradients of ``loc`` and ``scale`` (B, K, D)."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        of_logits, of_loc, of_scale = torch_gradients(g, x, logits, loc, scale, estimator, recursive)
        return of_logits.contiguous(), of_loc.contiguous(), of_scale.contiguous()
    from tenfold.mixture import kernels  # numba is imported at the first gradient, not with the package

    g_, x_, logits_, loc_, scale_ = (t.detach().contiguous().numpy() for t in (g, x, logits, loc, scale))
    gradients = kernels.diagonal_gradients(
        g_, x_, logits_, loc_, scale_, estimator == "responsibility", recursive, torch.get_num_threads()
    )
    grad_logits, grad_loc, grad_scale = (torch.from_numpy(a) for a in gradients)
    return grad_logits, grad_loc, grad_scale


@_mixture_gradients.register_fake
def _(
    g: Tensor, x: Tensor, logits: Tensor, loc: Tensor, scale: Tensor, estimator: str, recursive: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty((x.shape[0], x.shape[1], logits.shape[1])),
        loc.new_empty(loc.shape),
        scale.new_empty(scale.shape),
    )


@_mixture_gradients.register_vmap
def _(
    info: Any,
    in_dims: tuple[int | None, ...],
    g: Tensor,
    x: Tensor,
    logits: Tensor,
    loc: Tensor,
    scale: Tensor,
    estimator: str,
    recursive: bool,
) -> tuple[tuple[Tensor, ...], tuple[int, int, int]]:
    """The mapped dimension joins the batch: (S, V * B, ..)."""
    size = info.batch_size

    def joined(t: Tensor, dim: int | None, batch: int) -> Tensor:
        t = (
            t.unsqueeze(batch).expand(*t.shape[:batch], size, *t.shape[batch:])
            if dim is None
            else t.movedim(dim, batch)
        )
        return t.flatten(batch, batch + 1)

    merged = (
        joined(t, dim, batch)
        for t, dim, batch in zip((g, x, logits, loc, scale), in_dims, (1, 1, 0, 0, 0), strict=False)
    )
    grad_logits, grad_loc, grad_scale = torch.ops.tenfold.mixture_gradients(*merged, estimator, recursive)
    return (
        (
            grad_logits.unflatten(1, (size, -1)),
            grad_loc.unflatten(0, (size, -1)),
            grad_scale.unflatten(0, (size, -1)),
        ),
        (1, 0, 0),
    )
