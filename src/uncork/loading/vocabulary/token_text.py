"""Tokens as text: byte-level alphabets decoded, word markers dropped, kinds told by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable

# GPT-2 writes the bytes 0 to 255 as printable characters: itself where it is one, else 256 + n.
_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_SHIFTED = [byte for byte in range(256) if byte not in set(_PLAIN)]
BYTE_ALPHABET: dict[str, int] = {chr(byte): byte for byte in _PLAIN} | {
    chr(256 + n): byte for n, byte in enumerate(_SHIFTED)
}
_TO_BYTES = {ord(character): byte for character, byte in BYTE_ALPHABET.items()}
_ESCAPED_BYTE = {0xDC00 + byte: f"<0x{byte:02X}>" for byte in range(0x80, 0x100)}
_HIGH_BYTE = {byte: f"<0x{byte:02X}>" for byte in range(0x80, 0x100)}
_MOST_OF_ALPHABET = 250

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_NUMBERED = (
    r"(?:reserved(?:[ _-]?special)?|unused|extra|dummy|place[ _-]?holder|special)"
    r"(?:[ _-]?(?:id|tok|token))?[ _-]?\d+"
)
_UNUSED = re.compile(
    rf"▁?(?:<\|?{_NUMBERED}\|?>|\[{_NUMBERED}\]|<?madeupword\d+>?|<unk_\d+>|</?(?:s|unk)>NOTUSED)",
    re.IGNORECASE,
)
_SPECIAL = re.compile(
    r"\[(?:PAD|UNK|CLS|SEP|MASK|BOS|EOS|BLANK)\]"
    r"|</?(?:s|pad|unk|mask|bos|eos|sep|cls|eod|blank|ctc_blank|null)>"
    r"|<\|[^|<>]{1,60}\|>",
    re.IGNORECASE,
)


def from_byte_level(token: str) -> str:
    """The text a byte-level token stands for; bytes that are no UTF-8 are written <0xE2>.

    A token with a character outside the alphabet was never byte-level and stays as it is.
    """
    if token.isascii() and token.isprintable() and " " not in token:
        return token
    if any(character not in BYTE_ALPHABET for character in token):
        return token
    data = token.translate(_TO_BYTES).encode("latin-1")
    return data.decode("utf-8", "surrogateescape").translate(_ESCAPED_BYTE)


def from_bytes_as_characters(token: str) -> str:
    """The byte that a tokenizer of bytes writes as U+0000 to U+00FF: <0xE2> beyond ASCII."""
    return token.translate(_HIGH_BYTE)


def is_byte_level(tokens: Iterable[str]) -> bool:
    """Whether tokens are written in the byte-level alphabet: nearly all of it is among them."""
    return len({token for token in tokens if len(token) == 1} & BYTE_ALPHABET.keys()) >= (
        _MOST_OF_ALPHABET
    )


def bare(label: str) -> str:
    """A token without the marks of word and byte that subword tokenizers write: ▁ ## @@ </w>."""
    if "<0x" in label:
        label = _BYTE.sub("", label)
    label = label.replace("▁", " ").removeprefix("##").removesuffix("</w>")
    return label.removeprefix("@@").removesuffix("@@")


def named_unused(token: str) -> bool:
    """Whether a token's name says it was set aside: [unused12], <extra_id_3>, madeupword0001."""
    return _UNUSED.fullmatch(token) is not None


def named_special(token: str) -> bool:
    """Whether a token's name is one of those that control tokens go by: <s>, [CLS], <|im_end|>."""
    return _SPECIAL.fullmatch(token) is not None


def split_lines(text: str) -> list[str]:
    """Lines without their newlines. Nothing else is stripped, as a label may be a space, and
    nothing else ends a line: U+2028 is a token."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if len(lines) > 1 and all(line.endswith("\r") for line in lines[:-1]):  # written on Windows
        lines = [line.removesuffix("\r") for line in lines]
    return lines
