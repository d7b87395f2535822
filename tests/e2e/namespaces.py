"""Runs in vLLM's environment: says what its own parsers make of command lines.

First line out: the flags, with values that they take. Then for each line in, ``[entry, original,
stripped]``, a line out: an object with ``refused`` when vLLM does not take the original, else
``stripped_refused`` and ``differs`` (the names that the two namespaces do not agree on, once
speculation is set to its defaults in the first).
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from argparse import Action, ArgumentError, Namespace
from typing import Any

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

SPECULATION = (
    "speculative_config",
    "spec_method",
    "spec_model",
    "spec_tokens",
    "per_request_spec_decode_metrics",
)
CANDIDATES = ("3", "0.5", "-1", "word", "two words", "- dash", '{"a": {"b": 1}}', "1k", "None")


def parsers() -> dict[str, FlexibleArgumentParser]:
    main = FlexibleArgumentParser(prog="vllm")
    ServeSubcommand().subparser_init(main.add_subparsers(required=False, dest="subparser"))
    return {"serve": main, "module": make_arg_parser(FlexibleArgumentParser(prog="api_server"))}


PARSERS = parsers()
DEFAULTS = PARSERS["module"].parse_args([])


class Refused(Exception):
    """vLLM does not take the command line."""


def parse(entry: str, words: list[str]) -> Namespace:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            given = ["serve", *words] if entry == "serve" else words
            parsed: Namespace = PARSERS[entry].parse_args(given)
    except SystemExit:
        raise Refused(errors.getvalue()[-300:]) from None
    except (ValueError, AssertionError, IndexError, TypeError, AttributeError) as error:
        raise Refused(f"{type(error).__name__}: {error}"[:300]) from error
    if entry == "serve" and parsed.model_tag is not None:
        # As ServeSubcommand.cmd does first of all.
        parsed.model, parsed.model_tag = parsed.model_tag, None
    return parsed


def spelt(parsed: Namespace) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(parsed).items()}


def compare(entry: str, original: list[str], stripped: list[str]) -> dict[str, Any]:
    try:
        before = parse(entry, original)
    except Refused as error:
        return {"refused": str(error)}
    for name in SPECULATION:
        setattr(before, name, getattr(DEFAULTS, name))
    try:
        after = parse(entry, stripped)
    except Refused as error:
        return {"stripped_refused": str(error)}
    left, right = spelt(before), spelt(after)
    return {
        "differs": {
            name: [left.get(name), right.get(name)]
            for name in left.keys() | right.keys()
            if left.get(name) != right.get(name)
        }
    }


def described(action: Action) -> dict[str, Any] | None:
    if not action.option_strings or action.dest in ("help", "config", "model", *SPECULATION):
        return None
    values = []
    if action.nargs != 0:
        chosen = [str(choice) for choice in action.choices or () if choice is not None]
        for value in [*chosen[:3], *CANDIDATES]:
            with contextlib.suppress(ArgumentError):
                PARSERS["module"]._get_values(action, [value])
                values.append(value)
    return {
        "flags": list(action.option_strings),
        "values": values,
        "nargs": action.nargs,
        "kind": type(action).__name__,
    }


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr
    actions = [found for action in PARSERS["module"]._actions if (found := described(action))]
    print(json.dumps(actions), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(compare(*json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
