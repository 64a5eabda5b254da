"""A tokenizer of 120 words and randomly initialised models: transformers' parts without a download."""

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = (PAD, BOS, EOS, UNK)
SIZE = 120


def tokenizer(**options):
    names = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(SIZE - 4))]
    words = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", **options
    )


def bart():
    torch.manual_seed(0)
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=SIZE, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
            pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=EOS, forced_eos_token_id=EOS,
            dropout=0.0, attention_dropout=0.0,
        )
    )  # fmt: skip


def t5():
    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=SIZE, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, pad_token_id=PAD,
            eos_token_id=EOS, decoder_start_token_id=PAD, dropout_rate=0.0,
        )
    )  # fmt: skip


def examples(count, seed=0, longest=9):
    """Features of random sources and targets, the targets closed by the end."""
    generator = torch.Generator().manual_seed(seed)

    def ids():
        length = int(torch.randint(1, longest, (1,), generator=generator))
        return [*torch.randint(4, SIZE, (length,), generator=generator).tolist(), EOS]

    return [
        {"input_ids": (source := ids()), "attention_mask": [1] * len(source), "labels": ids()} for _ in range(count)
    ]
