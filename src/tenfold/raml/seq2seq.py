r"""Two sequence-to-sequence networks of one interface: a recurrent one with attention, and a small Transformer.

Both give ``p(y|x) = prod_t p(y_t | y_<t, x)`` over token ids. The decoder reads the target from `BOS` on and each of its
outputs is a prediction of the next token, the last one of `EOS`. Rows of a batch are padded with `PAD` to one width;
what stands in the padding, and how wide it is, changes no output.

`AttentionGRU` is the encoder-decoder of Bahdanau et al. 2015 (arXiv 1409.0473) with the scoring of Luong et al. 2015
(arXiv 1508.04025, "general"): with decoder states ``s_t`` and encoder states ``h_i``,

.. math:: a_{ti} \propto \exp(s_t^\top W_a h_i), \quad c_t = \sum_i a_{ti} h_i, \quad
    p(y_{t+1}) = \mathrm{softmax}(W_o \tanh(W_c [s_t; c_t]))

The attention does not feed back into the state, so that training runs the decoder in one call over all steps.
`SmallTransformer` is that of Vaswani et al. 2017 (arXiv 1706.03762), with the normalization before each block.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from tenfold.raml.recurrence import Packing, run_gru

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # ids in every vocabulary
NETWORKS = ("gru", "transformer")

State = tuple[Tensor, ...]


class Memory(NamedTuple):
    """What the decoder sees of the sources.

    Args:
        values: (batch, source, width), the encoder's outputs.
        real: (batch, source), False in the padding.
        state: What the decoder starts from; tensors whose first axis is the batch.
    """

    values: Float[Tensor, "batch source width"]
    real: Bool[Tensor, "batch source"]
    state: State

    def repeated(self, times: int) -> Memory:
        """Each row ``times`` times, the copies of a row next to each other."""
        return Memory(
            self.values.repeat_interleave(times, 0),
            self.real.repeat_interleave(times, 0),
            tuple(part.repeat_interleave(times, 0) for part in self.state),
        )


class AttentionGRU(nn.Module):
    """Bidirectional GRU encoder, GRU decoder, attention between them.

    Args:
        source_size: Number of source ids, the special ones included.
        target_size: Number of target ids, the special ones included.
        width: Width of the states, of each direction of the encoder and of the decoder; embeddings have half of it.
        layers: Recurrent layers, of the encoder and of the decoder.
        dropout: Of embeddings and outputs while training, from 0 to below 1.

    Raises:
        ValueError: A size that is no positive integer, or a dropout outside [0, 1).

    >>> network = AttentionGRU(source_size=30, target_size=43, width=16)
    >>> source, lengths = torch.randint(4, 30, (5, 7)), torch.tensor([7, 3, 1, 5, 7])
    >>> network(source, lengths, torch.randint(4, 43, (5, 6))).shape
    torch.Size([5, 6, 43])
    """

    def __init__(
        self, source_size: int, target_size: int, width: int = 128, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes(source_size=source_size, target_size=target_size, width=width, layers=layers)
        check_share("dropout", dropout)
        self.source_size, self.target_size, self.layers = source_size, target_size, layers
        features, between = max(1, width // 2), dropout if layers > 1 else 0.0
        self.source_embedding = nn.Embedding(source_size, features)
        self.target_embedding = nn.Embedding(target_size, features)
        self.encoder = nn.GRU(features, width, layers, batch_first=True, bidirectional=True, dropout=between)
        self.decoder = nn.GRU(features, width, layers, batch_first=True, dropout=between)
        self.to_state = nn.Linear(2 * width, width)
        self.to_query = nn.Linear(width, 2 * width, bias=False)
        self.combine = nn.Linear(3 * width, width)
        self.output = nn.Linear(width, target_size)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Int64[Tensor, "batch source"], lengths: Int64[Tensor, " batch"]) -> Memory:
        """The encoder's states of each row, and the decoder's first state."""
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        embedded = self.dropout(self.source_embedding(source))
        values, last = run_gru(self.encoder, embedded, lengths)
        ends = last.reshape(self.layers, 2, source.shape[0], -1)  # of each layer, its two directions
        start = torch.tanh(self.to_state(torch.cat([ends[:, 0], ends[:, 1]], -1)))
        return Memory(self.dropout(values), real, (start.transpose(0, 1).contiguous(),))

    def forward(
        self,
        source: Int64[Tensor, "batch source"],
        lengths: Int64[Tensor, " batch"],
        inputs: Int64[Tensor, "batch target"],
        input_lengths: Int64[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Logits of the token that follows each input; inputs start with `BOS`.

        With ``input_lengths`` nothing is computed for the padding of the inputs: logits are 0 there.
        """
        return self.decode(inputs, self.encode(source, lengths), input_lengths)

    def decode(
        self,
        inputs: Int64[Tensor, "batch target"],
        memory: Memory,
        input_lengths: Int64[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        """The same from sources that are encoded already."""
        if input_lengths is None:
            logits, _ = self._run(inputs, memory, memory.state[0])
            return logits
        embedded = self.dropout(self.target_embedding(inputs))
        start = memory.state[0].transpose(0, 1).contiguous()
        packing = Packing(input_lengths, inputs.shape[1]) if inputs.device.type == "cpu" else None
        states, _ = run_gru(self.decoder, embedded, input_lengths, start, packing)
        if packing is not None:
            packed = packing.pack(states)
            context = packing.pack(self._attend(packing.pad(self.to_query(packed)), memory))
            return packing.pad(self._predict(packed, context))
        logits = self._predict(states, self._attend(self.to_query(states), memory))
        real = torch.arange(inputs.shape[1], device=inputs.device) < input_lengths[:, None]
        return logits * real[..., None]

    def step(
        self, tokens: Int64[Tensor, " batch"], state: State, memory: Memory
    ) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Logits of the token after ``tokens``, and the next state; the first state is ``memory.state``."""
        logits, following = self._run(tokens[:, None], memory, state[0])
        return logits[:, 0], (following,)

    def _run(self, inputs: Tensor, memory: Memory, start: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.dropout(self.target_embedding(inputs))
        states, last = self.decoder(embedded, start.transpose(0, 1).contiguous())
        logits = self._predict(states, self._attend(self.to_query(states), memory))
        return logits, last.transpose(0, 1).contiguous()

    def _attend(self, queries: Tensor, memory: Memory) -> Tensor:
        scores = queries @ memory.values.transpose(1, 2)
        return scores.masked_fill(~memory.real[:, None], -math.inf).softmax(-1) @ memory.values

    def _predict(self, states: Tensor, context: Tensor) -> Tensor:
        return self.output(self.dropout(torch.tanh(self.combine(torch.cat([states, context], -1)))))


class SmallTransformer(nn.Module):
    """Transformer encoder and decoder, normalization first, sinusoidal positions.

    Args:
        source_size: Number of source ids, the special ones included.
        target_size: Number of target ids, the special ones included.
        width: Width of the layers; a multiple of ``heads``, even.
        layers: Blocks of the encoder, and of the decoder.
        dropout: While training, from 0 to below 1.
        heads: Attention heads.

    Raises:
        ValueError: A size that is no positive integer, heads that do not divide the width, or a dropout outside [0, 1).

    >>> network = SmallTransformer(source_size=30, target_size=43, width=16, layers=2)
    >>> source, lengths = torch.randint(4, 30, (5, 7)), torch.tensor([7, 3, 1, 5, 7])
    >>> network(source, lengths, torch.randint(4, 43, (5, 6))).shape
    torch.Size([5, 6, 43])
    """

    def __init__(
        self,
        source_size: int,
        target_size: int,
        width: int = 128,
        layers: int = 2,
        dropout: float = 0.0,
        heads: int = 4,
    ) -> None:
        super().__init__()
        check_sizes(source_size=source_size, target_size=target_size, width=width, layers=layers, heads=heads)
        check_share("dropout", dropout)
        if width % heads or width % 2:
            raise ValueError(f"width={width} must be even and a multiple of heads={heads}")
        self.source_size, self.target_size, self.layers, self.width = source_size, target_size, layers, width
        self.source_embedding = nn.Embedding(source_size, width)
        self.target_embedding = nn.Embedding(target_size, width)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=width**-0.5)
        self.encoder = nn.ModuleList(Block(width, heads, dropout, sees_source=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Block(width, heads, dropout, sees_source=True) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.output = nn.Linear(width, target_size)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Int64[Tensor, "batch source"], lengths: Int64[Tensor, " batch"]) -> Memory:
        """The encoder's outputs of each row; the decoder starts from an empty cache."""
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        hidden = self._embedded(self.source_embedding(source), 0)
        for block in self.encoder:
            hidden, _ = block(hidden, real[:, None, None])
        empty = hidden.new_zeros(len(source), 0, self.width)
        return Memory(self.encoder_norm(hidden), real, (empty,) * self.layers)

    def forward(
        self,
        source: Int64[Tensor, "batch source"],
        lengths: Int64[Tensor, " batch"],
        inputs: Int64[Tensor, "batch target"],
        input_lengths: Int64[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Logits of the token that follows each input; inputs start with `BOS`. A step never sees those after it."""
        return self.decode(inputs, self.encode(source, lengths), input_lengths)

    def decode(
        self,
        inputs: Int64[Tensor, "batch target"],
        memory: Memory,
        input_lengths: Int64[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch target vocabulary"]:
        """The same from sources that are encoded already; ``input_lengths`` save nothing here."""
        logits, _ = self._run(inputs, memory.state, memory)
        return logits

    def step(
        self, tokens: Int64[Tensor, " batch"], state: State, memory: Memory
    ) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Logits of the token after ``tokens``, and the next state; the first state is ``memory.state``."""
        logits, state = self._run(tokens[:, None], state, memory)
        return logits[:, 0], state

    def _run(self, inputs: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        past, steps = state[0].shape[1], inputs.shape[1]
        hidden = self._embedded(self.target_embedding(inputs), past)
        seen = torch.ones(steps, past + steps, dtype=torch.bool, device=inputs.device).tril(past)
        following = []
        for block, cache in zip(self.decoder, state, strict=True):
            hidden, cache = block(hidden, seen, cache, memory)
            following.append(cache)
        return self.output(self.decoder_norm(hidden)), tuple(following)

    def _embedded(self, vectors: Tensor, past: int) -> Tensor:
        """Scaled embeddings plus positions ``past``, ``past + 1``, ..."""
        positions = torch.arange(past, past + vectors.shape[1], device=vectors.device, dtype=torch.float32)
        half = torch.arange(0, self.width, 2, device=vectors.device, dtype=torch.float32)
        angles = positions[:, None] * torch.exp(half * (-math.log(10_000) / self.width))
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        return self.dropout(vectors * math.sqrt(self.width) + waves.to(vectors.dtype))


class Block(nn.Module):
    """One block: attention to itself, in the decoder to the source as well, and a layer of its own for each position."""

    def __init__(self, width: int, heads: int, dropout: float, *, sees_source: bool) -> None:
        super().__init__()
        self.own = Attention(width, heads)
        self.source = Attention(width, heads) if sees_source else None
        self.own_norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.source_norm = nn.LayerNorm(width) if sees_source else None
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, hidden: Tensor, seen: Tensor, cache: Tensor | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, Tensor]:
        """The block's outputs, and its (normalized) inputs of all positions so far, which the next step looks back at."""
        queries = self.own_norm(hidden)
        context = queries if cache is None else torch.cat([cache, queries], 1)
        hidden = hidden + self.dropout(self.own(queries, context, seen))
        if self.source is not None and self.source_norm is not None and memory is not None:
            attended = self.source(self.source_norm(hidden), memory.values, memory.real[:, None, None])
            hidden = hidden + self.dropout(attended)
        return hidden + self.dropout(self.inner(self.inner_norm(hidden))), context


class Attention(nn.Module):
    """Scaled dot products with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)

    def forward(self, queries: Tensor, context: Tensor, seen: Tensor) -> Tensor:
        """What ``queries`` (batch, target, width) find in ``context`` (batch, source, width) where ``seen`` is True."""
        query = self.query(queries).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.key_value(context).unflatten(-1, (2 * self.heads, -1)).transpose(1, 2).chunk(2, 1)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.out(found.transpose(1, 2).flatten(2))


def check_sizes(**sizes: int) -> None:
    """Raises a ValueError that names the first size that is no positive integer."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={size!r} must be an integer of at least 1")


def check_share(name: str, share: float) -> None:
    """Raises a ValueError unless ``share`` is at least 0 and below 1."""
    if not 0 <= share < 1:
        raise ValueError(f"{name}={share} must be at least 0 and below 1")
