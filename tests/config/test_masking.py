"""Secrets are masked by the names that they go by, and nothing else is."""

from __future__ import annotations

import time

import pytest

from specwatch.config.masking import masked, masked_text, secrets_in


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "a", "b", "--x", "8"], ["--api-key", "***", "***", "--x", "8"]),
        (["--api-key=a", "--hf-token", "b", "m"], ["--api-key=***", "--hf-token", "***", "m"]),
        (["--api_key", "a", "--api-k", "b"], ["--api_key", "***", "--api-k", "***"]),
        (["--ssl-keyfile-password", "c"], ["--ssl-keyfile-password", "***"]),
        (["-e", "HF_TOKEN=a b", "--env=API_KEY=c"], ["-e", "HF_TOKEN=***", "--env=API_KEY=***"]),
        (["MY_KEY=a", "DB_PASSWORD=b", "c"], ["MY_KEY=***", "DB_PASSWORD=***", "c"]),
        (
            ["sh", "-c", "HF_TOKEN=a vllm serve m --api-key 'b c' --port 80;x"],
            ["sh", "-c", "HF_TOKEN=*** vllm serve m --api-key '***' --port 80;x"],
        ),
        (['{"token": "a", "k": 1, "key":"b"}'], ['{"token": "***", "k": 1, "key":"***"}']),
        (["-H", "Authorization: Bearer a"], ["-H", "Authorization: ***"]),
        (["http://user:a@host/x?api_key=b&y=1"], ["http://user:***@host/x?api_key=***&y=1"]),
        (['["--api-key", "a"]'], ['["--api-key", "***"]']),
        (["--hub", "hf_AbCdEfGhIjKlMnOpQr"], ["--hub", "***"]),
        (["--x=sk-0123456789abcdef_-"], ["--x=***"]),
        (["sh", "-c", "login ghp_0123456789abcdefXY && x"], ["sh", "-c", "login *** && x"]),
        (["--id", f"eyJhbGciOiJI.{'a' * 20}.{'b' * 20}"], ["--id", "***"]),
    ],
)
def test_a_secret_is_masked_and_the_rest_stays(words: list[str], shown: list[str]) -> None:
    assert list(masked(words)) == shown
    assert list(masked(shown)) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["--tokenizer", "t", "--max-num-batched-tokens", "5", "--ssl-keyfile", "/a/b"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
        ["HF_TOKEN=${HF_TOKEN}", "--api-key", "$KEY", "--hf-token", "--port", "80"],
        ["sh", "-c", "exec vllm serve m --api-key $KEY --hf-token=$$X --tokenizer t"],
        ["serve", "sk-learn/model", "hf_org", "/models/sk-0123456789", "ask-0123456789abcdef"],
        ["--served-model-name", "key", "token", "--kv-transfer-config", '{"kv_role": "both"}'],
    ],
)
def test_words_that_are_not_secrets_are_shown(words: list[str]) -> None:
    assert masked(words) == tuple(words)


def test_known_values_are_masked_wherever_they_stand() -> None:
    known = secrets_in(["vllm", "--api-key", "sk-1", "x"], {"HF_TOKEN": "hf-1", "HOME": "/root"})
    assert masked_text("'sk-1' and hf-1 in /root", known) == "'***' and *** in /root"


@pytest.mark.parametrize("piece", ["a", "a ", "--a=", "a://", '"a"', "a:", "eyJ.", "eyJ-", "sk-"])
def test_a_long_text_is_not_searched_again_from_each_character(piece: str) -> None:
    """It would take half a minute of the processor."""
    text = piece * (50_000 // len(piece))
    begun = time.process_time()
    assert masked_text(text) == text
    assert time.process_time() - begun < 1.0
