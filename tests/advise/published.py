"""Models as their publishers describe them: ``data/models.json``.

``config`` are the values of the published ``config.json`` that sizes depend on, ``parameters`` the
exact total stated for the published weights (tied embeddings once). Both were typed in from what
is known of these models, at the page that ``source`` names, and not downloaded from there; that
they belong together is shown by ``by_class``: what the model class of transformers 5.19 has of
such a configuration on the meta device, with the routers' correction biases, which it keeps as
buffers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwatch.advise import architecture
from specwatch.advise.architecture import Architecture

DATA = Path(__file__).parent / "data" / "models.json"


@dataclass(frozen=True)
class Published:
    """A model with the figures that it is known by."""

    name: str
    parameters: int | None
    by_class: int
    config: dict[str, Any]

    @property
    def architecture(self) -> Architecture:
        return architecture.read(self.config, self.name)


MODELS = {
    each["name"].partition("/")[2]: Published(
        each["name"], each["parameters"], each["by_class"], each["config"]
    )
    for each in json.loads(DATA.read_text())
}
"""By name, without the publisher's."""


def shape(name: str) -> Architecture:
    return MODELS[name].architecture
