"""Runs in vLLM's environment: says which command lines its own configuration takes.

For each line in, a list of words after ``vllm serve``, a line out: an object with ``refused``, the
reason or null, and what vLLM made of it: ``method`` and ``k``. Nothing is loaded or started.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.CRITICAL)

from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

PARSER = make_arg_parser(FlexibleArgumentParser(prog="vllm"))


def configured(words: list[str]) -> dict[str, Any]:
    try:
        parsed = PARSER.parse_args(words)
    except SystemExit:
        return {"refused": "its parser refuses it"}
    parsed.model = parsed.model_tag or parsed.model
    try:
        config = EngineArgs.from_cli_args(parsed).create_engine_config()
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[:400]}
    found = config.speculative_config
    return {
        "refused": None,
        "method": None if found is None else found.method,
        "k": None if found is None else found.num_speculative_tokens,
    }


def abbreviations(flags: list[str]) -> dict[str, str]:
    """The shortest unambiguous abbreviation of each flag."""
    known = PARSER._option_string_actions
    found = {}
    for flag in flags:
        for length in range(3, len(flag) + 1):
            meant = {id(known[each]) for each in known if each.startswith(flag[:length])}
            if flag[:length] in known or len(meant) == 1:
                found[flag] = flag[:length]
                break
    return found


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        answer = abbreviations(asked["flags"]) if isinstance(asked, dict) else configured(asked)
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
