"""What differs between two tokenizers besides their tokens: how they cut text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from specwatch.advise.model import Finding, Level
from specwatch.advise.tokenizer_model import Pair, quoted
from specwatch.wording.text import shown

_CUT_OTHERWISE = (
    "the same text becomes other tokens: the draft was trained on other sequences than the target"
    " hands it, and acceptance suffers"
)
_REMEDY = "choose a draft with the target's tokenizer, or measure its acceptance"
_IDLE = {"trim_offsets": True, "use_regex": True, "behavior": None, "legacy": None}
"""Fields that later versions of the library write out though they change nothing."""
_ROLES: dict[str, tuple[Level, str]] = {
    "bos": ("doubt", "the draft was trained on texts that begin otherwise"),
    "eos": ("doubt", "the draft was trained to end otherwise: is one of the two a base model?"),
    "unk": ("doubt", _CUT_OTHERWISE),
    "pad": ("note", "a server pads nothing with it"),
}


def setting_findings(pair: Pair) -> Iterator[Finding]:
    """Yield what makes two tokenizers with (nearly) the same tokens differ nevertheless."""
    yield from _models(pair)
    yield from _merges(pair)
    yield from _scores(pair)
    if pair.alike:
        yield from _settings(pair)
        yield from _added(pair)
    else:
        yield _finding(
            pair,
            "note",
            "how text is cut and normalized was not compared:"
            f" {pair.target.format} and {pair.draft.format} say it differently",
        )
    yield from _special(pair)
    templates = (pair.target.chat_template, pair.draft.chat_template)
    if None not in templates and templates[0] != templates[1]:
        reason = "a server uses the target's only"
        yield _finding(pair, "note", "the chat templates differ", reason)


def _models(pair: Pair) -> Iterator[Finding]:
    models = (pair.target.model, pair.draft.model)
    if None not in models and models[0] != models[1]:
        text = f"the tokenizers' models differ: target {models[0]}, draft {models[1]}"
        yield _finding(pair, "wrong", text, _CUT_OTHERWISE, _REMEDY)


def _merges(pair: Pair) -> Iterator[Finding]:
    target, draft = pair.target.merges, pair.draft.merges
    if target is None or draft is None:
        if (target is None) != (draft is None):
            side = pair.target if target is None else pair.draft
            lacking = side.format == "vocab"
            yield _finding(
                pair,
                "doubt" if lacking else "note",
                f"merges cannot be compared: {side.where} has none",
                remedy="put merges.txt beside vocab.json" if lacking else "",
            )
        return
    if list(target) == list(draft):
        return
    rank, ours, theirs = _first_apart(target, draft)
    # Merges of the same tokens in the same order cut nearly all text alike.
    level: Level = "doubt" if _made(target) == _made(draft) else "wrong"
    text = (
        f"merges differ from rank {rank:,} on: target {quoted(ours)}, draft {quoted(theirs)}"
        f" ({len(target):,} and {len(draft):,} merges)"
    )
    yield _finding(pair, level, text, _CUT_OTHERWISE, _REMEDY)


def _first_apart(target: Sequence[str], draft: Sequence[str]) -> tuple[int, str | None, str | None]:
    return next(
        (rank, ours, theirs)
        for rank, (ours, theirs) in enumerate(zip_longest(target, draft))
        if ours != theirs
    )


def _made(merges: Sequence[str]) -> list[str]:
    return [merge.replace(" ", "") for merge in merges]


def _scores(pair: Pair) -> Iterator[Finding]:
    target, draft = pair.target.scores, pair.draft.scores
    if target is None or draft is None:
        return
    for number in sorted(pair.target.tokens.keys() & pair.draft.tokens.keys()):
        if number >= min(len(target), len(draft)):
            continue
        if not math.isclose(target[number], draft[number], rel_tol=1e-4, abs_tol=1e-6):
            text = (
                f"scores of pieces differ from id {number} on ({quoted(pair.at(number)[0])}):"
                f" target {target[number]:g}, draft {draft[number]:g}"
            )
            yield _finding(pair, "wrong", text, _CUT_OTHERWISE, _REMEDY)
            return


def _settings(pair: Pair) -> Iterator[Finding]:
    target, draft = pair.target.settings, pair.draft.settings
    for name in sorted(target.keys() | draft.keys()):
        apart = _difference(_plain(target.get(name)), _plain(draft.get(name)), name)
        if apart is None:
            continue
        place, ours, theirs = apart
        text = f"{place} differs: target {_said(ours)}, draft {_said(theirs)}"
        if name == "decoder":
            yield _finding(pair, "note", text, "a server writes text with the target's only")
        else:
            yield _finding(pair, "doubt", text, _CUT_OTHERWISE, _REMEDY)


def _plain(value: object) -> object:
    """Without what changes nothing: idle fields, and a sequence of one."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "Sequence":
        steps = next((v for v in value.values() if isinstance(v, list)), [])
        if len(steps) == 1:
            return _plain(steps[0])
        if not steps:
            return None
    return {
        key: _plain(item)
        for key, item in value.items()
        if not (key in _IDLE and item == _IDLE[key])
    }


def _difference(ours: object, theirs: object, place: str) -> tuple[str, object, object] | None:
    """Where two values differ first, as a path, with both sides."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("type") == theirs.get("type"):
            for key in [*ours, *(key for key in theirs if key not in ours)]:
                found = _difference(ours.get(key), theirs.get(key), f"{place}.{key}")
                if found is not None:
                    return found
            return None
    elif isinstance(ours, list) and isinstance(theirs, list):
        for number, (one, other) in enumerate(zip_longest(ours, theirs)):
            found = _difference(one, other, f"{place}[{number}]")
            if found is not None:
                return found
        return None
    return None if ours == theirs else (shown(place), ours, theirs)


def _said(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return shown(value["type"])
    return shown(json.dumps(value, ensure_ascii=False))


def _added(pair: Pair) -> Iterator[Finding]:
    ours, theirs = pair.target.added, pair.draft.added
    if ours is None or theirs is None or ours == theirs:
        return
    ids = pair.target.vocabulary
    both = ids.keys() & pair.draft.vocabulary.keys()
    apart = sorted(
        (ids[token], token)
        for token in (ours.keys() | theirs.keys()) & both
        if ours.get(token) != theirs.get(token)
    )
    if not apart:
        return
    number, token = apart[0]
    more = "" if len(apart) == 1 else f", and {len(apart) - 1:,} more"
    if token in ours and token in theirs:
        text = f"flags of the added token {quoted(token)} (id {number}) differ: target"
        text += f" {ours[token] or 'none'}, draft {theirs[token] or 'none'}{more}"
        yield _finding(pair, "note", text)
        return
    side = "target" if token in ours else "draft"
    text = f"{quoted(token)} (id {number}) is an added token of the {side} only{more}"
    yield _finding(pair, "doubt", text, _CUT_OTHERWISE, _REMEDY)


def _special(pair: Pair) -> Iterator[Finding]:
    target, draft = pair.target.special, pair.draft.special
    for role, (level, reason) in _ROLES.items():
        ours, theirs = target.get(role), draft.get(role)
        if ours == theirs:
            continue
        if (ours is None or theirs is None) and level != "note" and not (target and draft):
            level, reason = "note", "one of the two names no special tokens at all"
        text = f"the {role} token differs: target {_with_id(pair, 0, ours)}"
        yield _finding(pair, level, f"{text}, draft {_with_id(pair, 1, theirs)}", reason)


def _with_id(pair: Pair, side: int, token: str | None) -> str:
    if token is None:
        return "none"
    number = (pair.target, pair.draft)[side].id_of(token)
    return quoted(token) if number is None else f"{quoted(token)} (id {number})"


def _finding(pair: Pair, level: Level, text: str, reason: str = "", remedy: str = "") -> Finding:
    return Finding(
        topic="tokenizer",
        level=level,
        text=text,
        reason=reason,
        source=pair.source,
        remedy=remedy,
    )
