"""How long one step of the simulated engine takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class SimulatedCosts:
    """Step time in seconds, shaped like a roofline.

    ``base`` reads the weights, ``per_sequence`` the KV cache of one request. Reading the weights
    hides the arithmetic of ``free_tokens`` tokens; each token that is verified beyond them costs
    ``per_token``. One draft token for a batch of b costs ``draft_base + draft_per_sequence * b``.
    """

    base: float = 0.020
    per_sequence: float = 0.0001
    per_token: float = 0.00025
    free_tokens: int = 48
    prefill_per_token: float = 0.00005
    draft_base: float = 0.0022
    draft_per_sequence: float = 0.00003

    def step(self, sequences: int, verified: int, prefilled: int = 0) -> float:
        """A step of the target over ``sequences`` requests, without drafting.

        ``verified`` counts the tokens of decoding requests: one each, plus their draft tokens;
        ``prefilled`` those of prompts.
        """
        compute = self.per_token * max(0, verified - self.free_tokens)
        return (
            self.base + self.per_sequence * sequences + compute + self.prefill_per_token * prefilled
        )

    def draft(self, sequences: int, k: int) -> float:
        """Proposing ``k`` tokens for each of ``sequences`` requests."""
        return k * (self.draft_base + self.draft_per_sequence * sequences) if sequences else 0.0

    def plain(self, batch: int) -> float:
        """t_off: one decoding step of ``batch`` requests without speculation."""
        return self.step(batch, batch)

    def scaled(self, factor: float) -> SimulatedCosts:
        """The same shape with every time multiplied by ``factor``."""
        times = {name: value * factor for name, value in asdict(self).items()}
        return replace(self, **(times | {"free_tokens": self.free_tokens}))
