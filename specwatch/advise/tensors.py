"""Tensors of a model, summed by what becomes of them on several GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of parameters. ``total`` has tied embeddings once, and no layers for MTP."""

    total: int
    active: int
    """Those that one token uses: of a mixture of experts less than ``total``."""
    embedding: int
    """Input embeddings and output head, which quantization mostly leaves alone."""
    routed: int = 0
    """Of ``total``, those of experts that a router chooses among."""
    mtp: int = 0
    """More that layers for multi-token prediction have of their own."""
    copied: int = 0
    """Of ``total``, those that every GPU holds whole under tensor parallelism."""
    by_kv_head: int = 0
    """Of ``total``, those that are divided by key-value head, so into no more parts than heads."""


@dataclass(slots=True)
class Tensors:
    """A sum of tensors in the making."""

    split: int = 0
    """Divided among all GPUs of a tensor-parallel group."""
    by_kv_head: int = 0
    copied: int = 0
    routed: int = 0
    routed_idle: int = 0
    """Of ``routed``, those of the experts that a token is not sent to."""
    embedding: int = 0

    def add(self, other: Tensors, times: int = 1) -> None:
        """Add ``times`` as many tensors."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))

    @property
    def total(self) -> int:
        """All of them."""
        return self.split + self.by_kv_head + self.copied + self.routed + self.embedding
