"""Write this folder anew: ``python make.py``, with the libraries that are named below.

The files are what the libraries themselves write (tokenizers 0.23.3, transformers 5.19,
sentencepiece 0.2.3, gguf 0.19.0), so that the readers are not tested against our own idea of the
formats. The same little vocabularies stand in several formats each.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import TokenizersBackend

HERE = Path(__file__).parent
TEXT = [
    "The draft proposes tokens and the target accepts or rejects them one after the other.",
    "Acceptance falls where the temperature rises: größer, naïve, 東京, привет, 🙂.",
    "def accept(draft, target):\n    return [token for token in draft if token in target]\n",
] * 40
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def folder(name: str) -> Path:
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool_call>"])
    path = folder("bpe")
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "bos_token": None,
        "chat_template": TEMPLATE,
        "eos_token": "<|im_end|>",
        "pad_token": {"__type": "AddedToken", "content": "<|endoftext|>", "special": True},
        "model_max_length": 1000000000000000019884624838656,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    # The same as vocab.json and merges.txt; what was added stands apart.
    plain = folder("bpe-plain")
    tokenizer.model.save(str(plain))
    read = json.loads((path / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in read["added_tokens"]}
    (plain / "added_tokens.json").write_text(json.dumps(added, indent=2) + "\n")
    (plain / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer


def bpe_gguf(tokenizer: Tokenizer) -> None:
    """As convert_hf_to_gguf.py writes it: rows up to vocab_size are filled with [PADn]."""
    read = json.loads(tokenizer.to_str())
    special = {token["id"]: token["special"] for token in read["added_tokens"]}
    tokens, types = [], []
    for number in range(352):
        token = tokenizer.id_to_token(number)
        tokens.append(f"[PAD{number}]" if token is None else token)
        kind = gguf.TokenType.CONTROL if special.get(number) else gguf.TokenType.USER_DEFINED
        if token is None:
            kind = gguf.TokenType.UNUSED
        types.append(kind if number in special or token is None else gguf.TokenType.NORMAL)
    writer = gguf.GGUFWriter(HERE / "bpe.gguf", "qwen2")
    writer.add_name("Tiny")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in read["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    writer.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    rows = np.zeros((352, 32), dtype=np.float32)
    packed = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(32, dtype=np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((32, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pieces() -> None:
    corpus = HERE / "corpus.txt"
    corpus.write_text("\n".join(TEXT))
    for kind in ("bpe", "unigram"):
        path = folder(f"spm-{kind}")
        sentencepiece.SentencePieceTrainer.Train(
            input=str(corpus),
            model_prefix=str(path / "tokenizer"),
            model_type=kind,
            vocab_size=400,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            user_defined_symbols=["[INST]"],
            num_threads=1,
            minloglevel=2,
        )
        (path / "tokenizer.vocab").unlink()
        model = sentencepiece.SentencePieceProcessor(str(path / "tokenizer.model"))
        listed = {model.id_to_piece(i): model.get_score(i) for i in range(len(model))}
        (path / "pieces.json").write_text(json.dumps(list(listed.items())) + "\n")
        if kind == "bpe":
            spm_gguf(model)
            converted = TokenizersBackend.from_pretrained(str(path))
            converted.backend_tokenizer.save(str(folder("spm-bpe-fast") / "tokenizer.json"))
    corpus.unlink()


def spm_gguf(model: sentencepiece.SentencePieceProcessor) -> None:
    writer = gguf.GGUFWriter(HERE / "spm.gguf", "llama")
    writer.add_tokenizer_model("llama")
    size = len(model)
    writer.add_token_list([model.id_to_piece(i).encode() for i in range(size)])
    writer.add_token_scores([model.get_score(i) for i in range(size)])
    types = []
    for number in range(size):
        kind = gguf.TokenType.NORMAL
        if model.is_unknown(number):
            kind = gguf.TokenType.UNKNOWN
        elif model.is_control(number):
            kind = gguf.TokenType.CONTROL
        elif model.is_byte(number):
            kind = gguf.TokenType.BYTE
        elif model.id_to_piece(number) == "[INST]":
            kind = gguf.TokenType.USER_DEFINED
        types.append(kind)
    writer.add_token_types(types)
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    writer.add_add_bos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def others() -> None:
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False
    )
    unigram.train_from_iterator(TEXT, trainer)
    unigram.save(str(folder("unigram") / "tokenizer.json"))
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=["[PAD]", "[UNK]", "[CLS]"], show_progress=False
    )
    words.train_from_iterator(TEXT, trainer)
    path = folder("wordpiece")
    words.save(str(path / "tokenizer.json"))
    plain = folder("wordpiece-plain")
    words.model.save(str(plain))


if __name__ == "__main__":
    bpe_gguf(byte_level())
    pieces()
    others()
