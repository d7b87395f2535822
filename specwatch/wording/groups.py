"""Sentences about groups of replicas."""

from __future__ import annotations

from specwatch.domain.group import GroupVerdict
from specwatch.wording import figures
from specwatch.wording.text import shown

_MOST_NAMES = 5


def group_standing(group: GroupVerdict) -> str:
    """``group chat: speedup 1.24 (1.20 to 1.28) over the last hour; 4 of 4 servers measured``."""
    model = f" ({shown(group.model_name)})" if group.model_name not in ("", group.group) else ""
    name, speedup = f"group {shown(group.group)}{model}", "speedup not measured"
    if group.speedup is not None:
        one = group.speedup
        speedup = f"speedup {one.value:.2f} ({one.lower:.2f} to {one.upper:.2f}) over the last hour"
    return f"{name}: {speedup}; {group_servers(group)}"


def group_servers(group: GroupVerdict) -> str:
    """``3 of 4 servers measured; chat-3 stands out at 0.71 (0.68 to 0.74)``: who stands out, how
    many lose, who is the holdout, and how many are watched elsewhere."""
    count, losing = figures.counted(group.members, "server"), len(group.losing)
    parts = [f"{group.measured} of {count} measured"]
    parts += [
        f"{shown(one.target)} stands out at {one.speedup.value:.2f}"
        f" ({one.speedup.lower:.2f} to {one.speedup.upper:.2f})"
        for one in group.outliers[:_MOST_NAMES]
    ]
    if losing > 1:
        parts.append(f"{losing} lose")
    if group.holdouts:
        verb = "serves" if len(group.holdouts) == 1 else "serve"
        parts.append(f"{_listed(group.holdouts)} {verb} without speculation as the holdout")
    if group.prefilling:
        verb = "only prefills, and is" if len(group.prefilling) == 1 else "only prefill, and are"
        parts.append(f"{_listed(group.prefilling)} {verb} left out")
    elsewhere = group.members - group.watched
    if elsewhere > 0:
        parts.append(f"{elsewhere} {'is' if elsewhere == 1 else 'are'} watched by other daemons")
    return "; ".join(parts)


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMES
    listed = ", ".join(map(shown, names[:_MOST_NAMES]))
    return f"{listed} and {more} more" if more > 0 else listed
