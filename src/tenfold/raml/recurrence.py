r"""A GRU over sequences of unequal length, on the CPU: no step is computed for padding, and the gradient of the recurrent
weights is one product over all steps instead of one a step.

The unit is torch's ``nn.GRU``, whose weights it uses (``r``, ``z``, ``n`` in this order):

.. math:: r = \sigma(a_r + U_r h + b_r), \quad z = \sigma(a_z + U_z h + b_z), \quad
    n = \tanh(a_n + r (U_n h + b_n)), \quad h' = n + z (h - n)

with the inputs' part ``a = W x + b`` for all steps at once. Sequences are sorted by length and laid out step by step, so
that step ``t`` works on the first ``n_t`` rows, those longer than ``t``; the backward direction reads each sequence from
its own end, has the same ``n_t``, and is computed together with the forward one.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Packing:
    """The real places of a padded batch, step by step, longer sequences first.

    Args:
        lengths: (batch,), at least 1.
        width: Width of the padded batch, at least the longest length.

    >>> packing = Packing(torch.tensor([1, 3]), 4)
    >>> packing.steps, packing.pack(torch.arange(8).reshape(2, 4)).tolist()
    ([2, 1, 1], [4, 0, 5, 6])
    """

    def __init__(self, lengths: Int64[Tensor, " batch"], width: int) -> None:
        self.batch, self.width = len(lengths), width
        lengths, rows = lengths.sort(descending=True, stable=True)
        time = torch.arange(int(lengths[0]))
        real = time[:, None] < lengths  # (steps, batch)
        self.steps: list[int] = real.sum(1).tolist()
        self.rows, self.order = rows, rows.argsort()
        step, row = real.nonzero(as_tuple=True)
        self.places = rows[row] * width + step
        start = torch.zeros(len(time), dtype=torch.long)
        start[1:] = torch.tensor(self.steps[:-1], dtype=torch.long).cumsum(0)
        self.mirrored = start[lengths[row] - 1 - step] + row  # the same sequence's place as far from its other end

    def pack(self, padded: Tensor) -> Tensor:
        """(batch, width, ...) to (real places, ...)."""
        return padded.flatten(0, 1)[self.places]

    def pad(self, packed: Tensor) -> Tensor:
        """(real places, ...) to (batch, width, ...) with zeros in the padding."""
        flat = packed.new_zeros(self.batch * self.width, *packed.shape[1:])
        return flat.index_copy(0, self.places, packed).unflatten(0, (self.batch, self.width))


def run_gru(
    gru: nn.GRU,
    inputs: Float[Tensor, "batch steps features"],
    lengths: Int64[Tensor, " batch"],
    start: Float[Tensor, "states batch width"] | None = None,
    packing: Packing | None = None,
) -> tuple[Float[Tensor, "batch steps outputs"], Float[Tensor, "states batch width"]]:
    """What ``nn.GRU`` gives for sequences of these lengths, zeros in the padding, and the states at their ends.

    Args:
        gru: Batch first, with biases.
        inputs: Padded sequences.
        lengths: At least 1.
        start: First states, of each layer its directions; zeros unless given.
        packing: That of ``lengths``, if it is at hand.
    """
    if inputs.device.type != "cpu":
        packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, last = gru(packed, start)
        return pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])[0], last
    packing = packing or Packing(lengths, inputs.shape[1])
    directions = 2 if gru.bidirectional else 1
    if start is None:
        start = inputs.new_zeros(gru.num_layers * directions, len(inputs), gru.hidden_size)
    data, ends = packing.pack(inputs), []
    for layer in range(gru.num_layers):
        names = [f"l{layer}", f"l{layer}_reverse"][:directions]
        given = [
            [getattr(gru, f"{kind}_{name}") for name in names]
            for kind in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        ]
        sides = [data, data[packing.mirrored]][:directions]
        gates = torch.stack(
            [
                functional.linear(side, weight, bias)
                for side, weight, bias in zip(sides, given[0], given[1], strict=True)
            ]
        )
        first = start[layer * directions : (layer + 1) * directions][:, packing.rows]
        outputs, last = _Recurrence.apply(gates, first, torch.stack(given[2]), torch.stack(given[3]), packing.steps)
        data = outputs[0] if directions == 1 else torch.cat([outputs[0], outputs[1][packing.mirrored]], -1)
        ends.append(last[:, packing.order])
        if layer + 1 < gru.num_layers:
            data = functional.dropout(data, gru.dropout, gru.training)
    return packing.pad(data), torch.cat(ends)


class _Recurrence(torch.autograd.Function):
    """All steps of one layer: gates (directions, places, 3 width), states (directions, batch, width)."""

    @staticmethod
    def forward(
        context: Any, gates: Tensor, start: Tensor, weight: Tensor, bias: Tensor, steps: list[int]
    ) -> tuple[Tensor, Tensor]:
        width = start.shape[-1]
        outputs = gates.new_empty(*gates.shape[:2], width)
        before = torch.empty_like(outputs)
        opened, candidates, recurrent = (
            torch.empty_like(gates[..., : 2 * width]),
            torch.empty_like(outputs),
            torch.empty_like(outputs),
        )
        hidden, last, place = start, start.clone(), 0
        transposed = weight.transpose(1, 2)
        for count in steps:
            here = slice(place, place + count)
            hidden = hidden[:, :count]
            inner = torch.baddbmm(bias[:, None], hidden, transposed)
            opening = (gates[:, here, : 2 * width] + inner[..., : 2 * width]).sigmoid_()
            reset, update = opening.chunk(2, -1)
            candidate = torch.addcmul(gates[:, here, 2 * width :], reset, inner[..., 2 * width :]).tanh_()
            before[:, here] = hidden
            opened[:, here], candidates[:, here], recurrent[:, here] = opening, candidate, inner[..., 2 * width :]
            hidden = torch.lerp(candidate, hidden, update)
            outputs[:, here] = hidden
            last[:, :count] = hidden
            place += count
        context.save_for_backward(before, opened, candidates, recurrent, weight)
        context.steps = steps
        return outputs, last

    @staticmethod
    @once_differentiable
    def backward(context: Any, of_outputs: Tensor, of_last: Tensor) -> tuple[Tensor | None, ...]:
        before, opened, candidates, recurrent, weight = context.saved_tensors
        width = before.shape[-1]
        of_gates = opened.new_empty(*opened.shape[:2], 3 * width)
        of_inner = torch.empty_like(of_gates)
        reset, update = opened.chunk(2, -1)
        # what does not depend on the gradient, for all steps at once: derivatives of the gates by what goes into them
        of_update = (before - candidates) * update * (1 - update)
        of_candidate = (1 - update) * (1 - candidates.square())
        of_reset = recurrent * reset * (1 - reset)
        hidden = of_last.clone()
        place = before.shape[1]
        for count in reversed(context.steps):
            place -= count
            here = slice(place, place + count)
            total = hidden[:, :count] + of_outputs[:, here]
            candidate = total * of_candidate[:, here]
            inner = of_inner[:, here]
            torch.mul(candidate, of_reset[:, here], out=inner[..., :width])
            torch.mul(total, of_update[:, here], out=inner[..., width : 2 * width])
            torch.mul(candidate, reset[:, here], out=inner[..., 2 * width :])
            of_gates[:, here, 2 * width :] = candidate
            hidden[:, :count] = torch.baddbmm(total * update[:, here], inner, weight)
        of_gates[..., : 2 * width] = of_inner[..., : 2 * width]
        return of_gates, hidden, of_inner.transpose(1, 2) @ before, of_inner.sum(1), None
