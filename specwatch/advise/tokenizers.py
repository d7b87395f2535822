"""Two tokenizers, read and compared token by token: the silent failure of this field."""

from __future__ import annotations

from specwatch.advise.gguf_tokenizer import gguf
from specwatch.advise.model_files import TokenizerFiles
from specwatch.advise.sentencepiece_model import sentencepiece
from specwatch.advise.token_comparison import Server, compare
from specwatch.advise.tokenizer_formats import hugging_face, plain_vocabulary, tekken, tiktoken
from specwatch.advise.tokenizer_model import Tokenizer, quoted
from specwatch.errors import ConfigError

__all__ = ["Server", "Tokenizer", "compare", "quoted", "read"]


def read(files: TokenizerFiles) -> Tokenizer:
    """Read a tokenizer of any known format, the one that a server prefers where there are several.

    Raises :class:`ConfigError` naming the file that cannot be read.
    """
    if files.gguf is not None:
        return gguf(files)
    if "tokenizer.json" in files.files:
        return hugging_face(files)
    if "tekken.json" in files.files:
        return tekken(files)
    for file, data in sorted(files.files.items()):
        if file.startswith("tokenizer.model"):
            # Llama 3 calls a tiktoken file so, a protobuf begins with the tag of its first piece.
            return sentencepiece(files, file) if data[:1] == b"\n" else tiktoken(files, file)
    for file in sorted(files.files):
        if file.endswith((".tiktoken", "tiktoken.model")):
            return tiktoken(files, file)
    if files.files.keys() & {"vocab.json", "vocab.txt"}:
        return plain_vocabulary(files)
    raise ConfigError(
        f"{files.where}: no vocabulary; expected tokenizer.json, tekken.json, tokenizer.model,"
        " *.tiktoken, vocab.json or vocab.txt: download it from where the model came from"
    )
