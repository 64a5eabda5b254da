"""Batch normalization inside an LSTM (Cooijmans et al. 2016), and on its input only (Laurent et al. 2015).

Batch normalization of Ioffe & Szegedy 2015 has one population mean and variance a channel. In a recurrent network the
distribution of the states changes from step to step, most at the beginning; Cooijmans et al. therefore keep the statistics of
each step apart up to a longest length, while the scales are shared over time:

    (i, f, g, o) = BN(W_h h; gamma_h) + BN(W_x x; gamma_x) + b
    c' = sigmoid(f) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(BN(c'; gamma_c, beta_c))

The first two normalizations have no shift of their own, b serves both. The scales start at 0.1: at 1 the tanh saturates and its
gradient vanishes. Laurent et al. normalize W_x x alone, over batch and time together ("sequence-wise"), padding left out.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tenfold.normalization.step_statistics import StepNorm, check_positive, valid_steps

State = tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]]


def _orthogonal_blocks(weight: Tensor, blocks: int) -> None:
    """Fill each of ``blocks`` row blocks of a weight with an orthogonal matrix of its own."""
    for block in weight.chunk(blocks, dim=0):
        nn.init.orthogonal_(block)


class _GatedCell(nn.Module):
    """What both networks share: weights, the input's layout, and the walk over the steps."""

    def __init__(self, input_size: int, hidden_size: int, *, batch_first: bool, initial_noise: float) -> None:
        super().__init__()
        check_positive(input_size=input_size, hidden_size=hidden_size)
        if not initial_noise >= 0:
            raise ValueError(f"initial_noise={initial_noise} is negative; give a standard deviation of 0 or more")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.batch_first = batch_first
        self.initial_noise = initial_noise

    def _default_state(self, x: Tensor) -> State:
        h = x.new_zeros(x.shape[1], self.hidden_size)
        if self.training and self.initial_noise > 0:
            h = h + self.initial_noise * torch.randn_like(h)
        return h, torch.zeros_like(h)

    def _checked_state(self, state: State | None, x: Tensor) -> State:
        if state is None:
            return self._default_state(x)
        wanted = (x.shape[1], self.hidden_size)
        for name, tensor in zip(("h", "c"), state, strict=True):
            if tuple(tensor.shape) != wanted:
                raise ValueError(f"state {name} has shape {tuple(tensor.shape)}; give (batch, hidden_size) = {wanted}")
        return state

    def forward(
        self,
        x: Float[Tensor, "first second input"] | PackedSequence,
        state: State | None = None,
        *,
        mask: Bool[Tensor, "first second"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "first second hidden"] | PackedSequence, State]:
        """Run the network over a batch of sequences.

        Args:
            x: Input, (steps, batch, input_size), or (batch, steps, input_size) with ``batch_first``; or a PackedSequence.
            state: First hidden state and memory, each (batch, hidden_size); zeros if None.
            mask: True at valid steps, in the layout of ``x``. A masked step changes nothing: it enters no statistic, its
                output is zero and the state is carried over it.
            lengths: Number of valid steps of each sequence, instead of a mask.

        Returns:
            The hidden states in the layout of ``x``, and the state after the last valid step.

        Raises:
            ValueError: Wrong rank, width, mask, lengths or state; or one valid row in training with ``on_single="error"``.
        """
        if isinstance(x, PackedSequence):
            if mask is not None or lengths is not None:
                raise ValueError("a PackedSequence knows its lengths; leave out mask and lengths")
            padded, packed_lengths = pad_packed_sequence(x, batch_first=self.batch_first)
            output, state = self._padded(padded, state, None, packed_lengths)
            return pack_padded_sequence(output, packed_lengths, self.batch_first, enforce_sorted=False), state
        return self._padded(x, state, mask, lengths)

    def _padded(
        self, x: Tensor, state: State | None, mask: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            layout = "(batch, steps, input_size)" if self.batch_first else "(steps, batch, input_size)"
            raise ValueError(f"x has shape {tuple(x.shape)}; give {layout} with input_size={self.input_size}")
        if self.batch_first:
            x = x.transpose(0, 1)
            mask = None if mask is None else mask.transpose(0, 1)
        steps, batch = x.shape[:2]
        if steps == 0:
            raise ValueError("x has no steps; give sequences of 1 step or more")
        valid = valid_steps(mask, lengths, steps, batch, x.device)
        if valid is not None:
            x = x.masked_fill(~valid.unsqueeze(-1), 0.0)  # whatever the padding holds, NaN too
        output, state = self._walk(x, self._checked_state(state, x), valid)
        return (output.transpose(0, 1) if self.batch_first else output), state

    def _walk(self, x: Tensor, state: State, valid: Tensor | None) -> tuple[Tensor, State]:
        raise NotImplementedError


def _carried(new: Tensor, old: Tensor, valid: Tensor | None) -> Tensor:
    """The new state where the step is valid, the old one elsewhere."""
    return new if valid is None else torch.where(valid.unsqueeze(-1), new, old)


def _stacked(outputs: list[Tensor], valid: Tensor | None) -> Tensor:
    """The hidden states of all steps, zero at padding."""
    output = torch.stack(outputs)
    return output if valid is None else output.masked_fill(~valid.unsqueeze(-1), 0.0)


class BatchNormLSTM(_GatedCell):
    """An LSTM with batch normalization of both products and of the memory, statistics of each step apart.

    The equations stand at the head of this module. Gates lie in the order of ``torch.nn.LSTM`` (i, f, g, o).

    Args:
        input_size: Width of the input.
        hidden_size: Width H of state and memory.
        max_length: Number of steps Tmax with population statistics of their own; steps from Tmax - 1 on share the last.
        gamma: First value of the scales gamma_ih, gamma_hh and gamma_c.
        eps: Added to the variance.
        momentum: Weight of the new batch in the population statistics, in (0, 1]; None for their cumulative average.
        batch_first: Input as (batch, steps, input_size).
        initial_noise: Standard deviation of the noise on the default first state in training: where the first steps of all
            sequences look alike, the batch's variance is nearly 0 without it.
        on_single: What to do in training at a step with one valid row, which has no variance: ``"running"`` normalizes
            it with the population statistics, ``"error"`` raises.

    Attributes:
        weight_ih, weight_hh: (4H, input_size) and (4H, H), orthogonal in each gate at first.
        bias: (4H,), zero at first.
        gamma_ih, gamma_hh, gamma_c, beta_c: Scales (4H,), (4H,), (H,) and the memory's shift (H,).
        running_mean_x, running_var_x: Statistics of W_x x, (Tmax, 4H); variances are unbiased, as in ``torch.nn``.
        running_mean_h, running_var_h: Statistics of W_h h, (Tmax, 4H).
        running_mean_c, running_var_c: Statistics of the memory, (Tmax, H).
        num_batches_tracked_x, _h, _c: How often each step's statistics were updated, (Tmax,).

    Raises:
        ValueError: A size is below 1, or eps, momentum, initial_noise or on_single is out of its range.

    Cooijmans, Ballas, Laurent, Gulcehre & Courville 2016, Recurrent Batch Normalization, section 3.

    >>> lstm = BatchNormLSTM(3, 8, max_length=5)
    >>> output, (h, c) = lstm(torch.randn(7, 4, 3), lengths=torch.tensor([7, 3, 1, 5]))
    >>> output.shape, lstm.running_mean_h.shape
    (torch.Size([7, 4, 8]), torch.Size([5, 32]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        max_length: int,
        gamma: float = 0.1,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        batch_first: bool = False,
        initial_noise: float = 0.0,
        on_single: Literal["running", "error"] = "running",
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, initial_noise=initial_noise)
        check_positive(max_length=max_length)
        self.max_length = max_length
        self.gamma = gamma
        self._norm = StepNorm(eps=eps, momentum=momentum, on_single=on_single)
        gates = 4 * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(gates, input_size))
        self.weight_hh = nn.Parameter(torch.empty(gates, hidden_size))
        self.bias = nn.Parameter(torch.empty(gates))
        self.gamma_ih = nn.Parameter(torch.empty(gates))
        self.gamma_hh = nn.Parameter(torch.empty(gates))
        self.gamma_c = nn.Parameter(torch.empty(hidden_size))
        self.beta_c = nn.Parameter(torch.empty(hidden_size))
        for name, width in (("x", gates), ("h", gates), ("c", hidden_size)):
            self.register_buffer(f"running_mean_{name}", torch.empty(max_length, width))
            self.register_buffer(f"running_var_{name}", torch.empty(max_length, width))
            self.register_buffer(f"num_batches_tracked_{name}", torch.zeros(max_length, dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weights, scales and statistics to their first values."""
        _orthogonal_blocks(self.weight_ih.data, 4)
        _orthogonal_blocks(self.weight_hh.data, 4)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.beta_c)
        for scale in (self.gamma_ih, self.gamma_hh, self.gamma_c):
            nn.init.constant_(scale, self.gamma)
        self.reset_running_stats()

    def reset_running_stats(self) -> None:
        """Set all population means to 0 and variances to 1."""
        for name in "xhc":
            self.get_buffer(f"running_mean_{name}").zero_()
            self.get_buffer(f"running_var_{name}").fill_(1.0)
            self.get_buffer(f"num_batches_tracked_{name}").zero_()

    def extra_repr(self) -> str:
        """Arguments shown by ``print(module)``."""
        return f"{self.input_size}, {self.hidden_size}, max_length={self.max_length}, {self._norm}"

    def _normalized(self, name: str, values: Tensor, step: int, valid: Tensor | None) -> Tensor:
        slot = min(step, self.max_length - 1)
        return self._norm(
            values,
            valid,
            self.get_buffer(f"running_mean_{name}")[slot],
            self.get_buffer(f"running_var_{name}")[slot],
            self.get_buffer(f"num_batches_tracked_{name}")[slot],
            training=self.training,
        )

    def _walk(self, x: Tensor, state: State, valid: Tensor | None) -> tuple[Tensor, State]:
        h, c = state
        products = nn.functional.linear(x, self.weight_ih)  # of all steps at once
        outputs = []
        for step in range(x.shape[0]):
            now = None if valid is None else valid[step]
            if now is not None and not bool(now.any()):
                outputs.append(torch.zeros_like(h))
                continue
            gates = self.bias + self.gamma_ih * self._normalized("x", products[step], step, now)
            recurrent = nn.functional.linear(h, self.weight_hh)
            gates = gates + self.gamma_hh * self._normalized("h", recurrent, step, now)
            i, f, g, o = gates.chunk(4, dim=-1)
            memory = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            shown = self.gamma_c * self._normalized("c", memory, step, now) + self.beta_c
            hidden = torch.sigmoid(o) * torch.tanh(shown)
            h, c = _carried(hidden, h, now), _carried(memory, c, now)
            outputs.append(h)
        return _stacked(outputs, valid), (h, c)


class SequenceBatchNormLSTM(_GatedCell):
    """An LSTM whose input-to-hidden product alone is normalized, over batch and time together.

        (i, f, g, o) = W_h h + gamma_ih * (W_x x - mu) / sqrt(var + eps) + b

    with mu and var of each gate over all valid steps of all sequences of the batch; the recurrence itself is left as it is.

    Args:
        input_size: Width of the input.
        hidden_size: Width H of state and memory.
        eps: Added to the variance.
        momentum: Weight of the new batch in the population statistics, in (0, 1]; None for their cumulative average.
        batch_first: Input as (batch, steps, input_size).
        initial_noise: Standard deviation of the noise on the default first state in training.
        on_single: As in :class:`BatchNormLSTM`, for a batch with one valid step in all.

    Attributes:
        weight_ih, weight_hh, bias, gamma_ih: As in :class:`BatchNormLSTM`; gamma_ih starts at 1.
        running_mean_x, running_var_x, num_batches_tracked_x: Population statistics of W_x x, (4H,), and their updates.

    Raises:
        ValueError: A size is below 1, or eps, momentum, initial_noise or on_single is out of its range.

    Laurent, Pereyra, Brakel, Zhang & Bengio 2015, Batch Normalized Recurrent Neural Networks, section 3.2.

    >>> lstm = SequenceBatchNormLSTM(3, 8, batch_first=True)
    >>> output, (h, c) = lstm(torch.randn(4, 7, 3), lengths=torch.tensor([7, 3, 1, 5]))
    >>> output.shape, bool((output[2, 1:] == 0).all())
    (torch.Size([4, 7, 8]), True)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        batch_first: bool = False,
        initial_noise: float = 0.0,
        on_single: Literal["running", "error"] = "running",
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, initial_noise=initial_noise)
        self._norm = StepNorm(eps=eps, momentum=momentum, on_single=on_single)
        gates = 4 * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(gates, input_size))
        self.weight_hh = nn.Parameter(torch.empty(gates, hidden_size))
        self.bias = nn.Parameter(torch.empty(gates))
        self.gamma_ih = nn.Parameter(torch.empty(gates))
        self.register_buffer("running_mean_x", torch.empty(gates))
        self.register_buffer("running_var_x", torch.empty(gates))
        self.register_buffer("num_batches_tracked_x", torch.tensor(0))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weights, scale and statistics to their first values."""
        _orthogonal_blocks(self.weight_ih.data, 4)
        _orthogonal_blocks(self.weight_hh.data, 4)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.gamma_ih)
        self.get_buffer("running_mean_x").zero_()
        self.get_buffer("running_var_x").fill_(1.0)
        self.get_buffer("num_batches_tracked_x").zero_()

    def extra_repr(self) -> str:
        """Arguments shown by ``print(module)``."""
        return f"{self.input_size}, {self.hidden_size}, {self._norm}"

    def _walk(self, x: Tensor, state: State, valid: Tensor | None) -> tuple[Tensor, State]:
        h, c = state
        products = nn.functional.linear(x, self.weight_ih)
        normalized = self._norm(
            products.flatten(0, 1),
            None if valid is None else valid.flatten(),
            self.get_buffer("running_mean_x"),
            self.get_buffer("running_var_x"),
            self.get_buffer("num_batches_tracked_x"),
            training=self.training,
        ).view_as(products)
        inputs = self.gamma_ih * normalized + self.bias
        outputs = []
        for step in range(x.shape[0]):
            now = None if valid is None else valid[step]
            i, f, g, o = (inputs[step] + nn.functional.linear(h, self.weight_hh)).chunk(4, dim=-1)
            memory = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(memory)
            h, c = _carried(hidden, h, now), _carried(memory, c, now)
            outputs.append(h)
        return _stacked(outputs, valid), (h, c)
