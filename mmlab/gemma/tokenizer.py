"""A tokenizer without a vocabulary file: one token a byte, so that every text has ids and back.

Its ids are those that the presets' configurations name. Ids past the bytes are filled up to the
model's vocabulary with `<unused..>`, because a model with random weights produces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD_ID: Final = 0
EOS_ID: Final = 1
BOS_ID: Final = 2
FIRST_BYTE_ID: Final = 3  # byte b has the id b + 3
UNK_ID: Final = 259
BOI_ID: Final = 260
IMAGE_ID: Final = 261
EOI_ID: Final = 262
BOA_ID: Final = 263  # from here on of models that also hear and see videos
AUDIO_ID: Final = 264
EOA_ID: Final = 265
VIDEO_ID: Final = 266

SPECIAL: Final[dict[str, int]] = {
    "<pad>": PAD_ID,
    "<eos>": EOS_ID,
    "<bos>": BOS_ID,
    "<unk>": UNK_ID,
    "<start_of_image>": BOI_ID,
    "<image_soft_token>": IMAGE_ID,
    "<end_of_image>": EOI_ID,
}
# Attribute of the tokenizer -> token and id. transformers gives the video's token its name.
AUDIO_VIDEO: Final[dict[str, tuple[str, int]]] = {
    "boa_token": ("<start_of_audio>", BOA_ID),
    "audio_token": ("<audio_soft_token>", AUDIO_ID),
    "eoa_token": ("<end_of_audio>", EOA_ID),
    "video_token": ("<|video|>", VIDEO_ID),
}


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE, in the order of the bytes.

    Printable Latin-1 stands for itself, the rest for the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def byte_level_tokenizer(
    vocab_size: int, more: Mapping[str, tuple[str, int]] | None = None
) -> PreTrainedTokenizerFast:
    """A fast tokenizer of `vocab_size` ids: bytes, the special tokens above, unused ones.

    `more`: special tokens besides, whose ids follow those above: attribute -> (token, id).
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    more = more or {}
    vocab = dict(SPECIAL) | dict(more.values())
    vocab.update((char, FIRST_BYTE_ID + byte) for byte, char in enumerate(byte_alphabet()))
    vocab.update((f"<unused{index}>", index) for index in range(len(vocab), vocab_size))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS_ID)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        extra_special_tokens={
            "boi_token": "<start_of_image>",
            "image_token": "<image_soft_token>",
            "eoi_token": "<end_of_image>",
            **{attribute: token for attribute, (token, _) in more.items()},
        },
    )
