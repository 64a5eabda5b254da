"""A sequence-to-sequence model of text: a network, how text becomes tokens, and the two vocabularies, in one folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tenfold.errors import InputError
from tenfold.raml.data import Pairs as TextPairs
from tenfold.raml.data import Vocabulary, check_tokens, join, padded, token_rows
from tenfold.raml.decoding import beam_search, greedy
from tenfold.raml.seq2seq import NETWORKS, AttentionGRU, SmallTransformer, check_sizes
from tenfold.training import ModelFolder

VOCABULARY = "vocabulary.txt"
SIDES = ("source", "target")
DECODED_AT_ONCE = 16_384  # beams times rows times longest source, about


class Prediction(NamedTuple):
    """What the model puts out for a source.

    Args:
        text: The tokens, joined.
        tokens: One by one.
        score: Log-probability in nats, with the end; of beam search divided by the length.
    """

    text: str
    tokens: tuple[str, ...]
    score: float


class Seq2SeqModel(nn.Module, ModelFolder):
    """Sequence-to-sequence model from text to text, with its vocabularies.

    Args:
        source_vocabulary: Of the sources' tokens.
        target_vocabulary: Of the targets' tokens.
        network: ``"gru"`` (attention between recurrent networks) or ``"transformer"``.
        width: Width of the layers.
        layers: Layers of encoder and decoder.
        dropout: While training.
        source_tokens: ``"character"``, ``"space"`` or ``"regex:..."``.
        target_tokens: The same, for targets.
        max_length: Most tokens of an output.
        rare_as_unknown: Whether rare tokens were trained on as one unknown token, so that tokens which are not in the
            vocabulary may be read as it; otherwise they are refused.

    Raises:
        ValueError: An unknown network or kind of tokens, or a size out of range.

    >>> model = Seq2SeqModel(Vocabulary("tea"), Vocabulary(["T", "IY"]), width=8, target_tokens="space").eval()
    >>> len(model.predict(["tea", "eat"])), [len(model.source_vocabulary), len(model.target_vocabulary)]
    (2, [7, 6])
    """

    extra_files = (VOCABULARY,)
    file_arguments = ("source_vocabulary", "target_vocabulary")
    card_text = """
    A sequence-to-sequence model from text to text. At the command line:

    ```
    tenfold raml predict this/folder SOURCES
    tenfold raml evaluate this/folder PAIRS
    ```
    """

    def __init__(
        self,
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        network: str = "gru",
        width: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        source_tokens: str = "character",
        target_tokens: str = "character",
        max_length: int = 100,
        rare_as_unknown: bool = False,
    ) -> None:
        super().__init__()
        if network not in NETWORKS:
            raise ValueError(f"network={network!r} is not one of {', '.join(map(repr, NETWORKS))}")
        check_tokens("source_tokens", source_tokens)
        check_tokens("target_tokens", target_tokens)
        check_sizes(max_length=max_length)
        kind: Any = AttentionGRU if network == "gru" else SmallTransformer
        self.network: Any = kind(len(source_vocabulary), len(target_vocabulary), width, layers, dropout)
        self.source_vocabulary, self.target_vocabulary = source_vocabulary, target_vocabulary
        self.source_tokens, self.target_tokens = source_tokens, target_tokens
        self.max_length = max_length
        self.rare_as_unknown = rare_as_unknown

    def forward(self, source: Any, lengths: Any, inputs: Any, input_lengths: Any = None) -> Any:
        """The network's logits."""
        return self.network(source, lengths, inputs, input_lengths)

    def encode_sources(
        self,
        sources: Sequence[str],
        *,
        path: str | os.PathLike[str] | None = None,
        lines: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Ids of sources.

        Args:
            sources: Texts.
            path: The file that they are from, for messages.
            lines: Their lines in it.

        Raises:
            InputError: A source without tokens, or with a token that the model does not know.
        """
        pairs = TextPairs(
            tuple(sources),
            tuple(sources),
            None if path is None else Path(path),
            None if lines is None else tuple(lines),
        )
        rows = []
        for row, tokens in enumerate(token_rows(pairs, "source", self.source_tokens)):
            unknown = None if self.rare_as_unknown else self.source_vocabulary.first_unknown(tokens)
            if unknown is not None:
                shown = " ".join(self.source_vocabulary.tokens[:40]) + (
                    " ..." if len(self.source_vocabulary) > 44 else ""
                )
                raise pairs.refuse(row, f"the model's vocabulary has no {unknown!r}; it has {shown}")
            rows.append(self.source_vocabulary.encode(tokens))
        return rows

    @torch.no_grad()
    def predict(
        self,
        sources: Sequence[str],
        *,
        beam_size: int = 1,
        length_penalty: float = 1.0,
        max_length: int | None = None,
        path: str | os.PathLike[str] | None = None,
        lines: Sequence[int] | None = None,
    ) -> list[Prediction]:
        """The model's output for each source, whatever others there are beside it.

        Args:
            sources: Texts.
            beam_size: Prefixes that beam search keeps; 1 is greedy.
            length_penalty: Of beam search.
            max_length: Most tokens of an output; None: the model's own.
            path: The file that the sources are from, for messages.
            lines: Their lines in it.

        Raises:
            InputError: A source without tokens, or with a token that the model does not know.
            ValueError: A beam size or length below 1.
        """
        longest = self.max_length if max_length is None else max_length
        check_sizes(beam_size=beam_size, max_length=longest)
        rows = self.encode_sources(sources, path=path, lines=lines)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))  # batches of like length, little padding
        found: dict[int, Prediction] = {}
        device = next(self.parameters()).device
        training = self.training
        self.eval()
        try:
            while order:
                size = max(1, DECODED_AT_ONCE // (beam_size * len(rows[order[-1]])))
                batch, order = order[-size:], order[:-size]
                ids, lengths = (part.to(device) for part in padded([rows[row] for row in batch]))
                if beam_size == 1:
                    decoded = greedy(self.network, ids, lengths, longest)
                else:
                    decoded = beam_search(self.network, ids, lengths, longest, beam_size, length_penalty=length_penalty)
                outputs = zip(
                    batch, decoded.ids.tolist(), decoded.lengths.tolist(), decoded.scores.tolist(), strict=True
                )
                for row, tokens, length, score in outputs:
                    words = tuple(self.target_vocabulary.decode(tokens[:length]))
                    found[row] = Prediction(join(words, self.target_tokens), words, score)
        finally:
            self.train(training)
        return [found[row] for row in range(len(rows))]

    def write_files(self, folder: Path) -> None:
        """Writes the vocabularies: one token a line, behind its side and a tab, in the order of the ids from 4 on."""
        sides = zip(SIDES, (self.source_vocabulary, self.target_vocabulary), strict=True)
        lines = [f"{side}\t{token}\n" for side, vocabulary in sides for token in vocabulary.tokens]
        (folder / VOCABULARY).write_bytes("".join(lines).encode())

    @classmethod
    def read_files(cls, folder: Path) -> dict[str, Any]:
        """The vocabularies.

        Raises:
            InputError: The file is missing, or a line of it is not a side, a tab and a token.
        """
        path = folder / VOCABULARY
        try:
            text = path.read_bytes().decode()
        except FileNotFoundError as error:
            raise InputError(f"this is no model folder: it has no {VOCABULARY}", path=folder) from error
        except UnicodeDecodeError as error:
            raise InputError("this vocabulary is no UTF-8 text", path=path) from error
        tokens: dict[str, list[str]] = {side: [] for side in SIDES}
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            side, tab, token = line.partition("\t")
            if side not in tokens or not tab or not token:
                raise InputError("a line is source or target, a tab, and a token", path=path, line=number)
            tokens[side].append(token)
        try:
            return {f"{side}_vocabulary": Vocabulary(tokens[side]) for side in SIDES}
        except ValueError as error:
            raise InputError(str(error), path=path) from error
