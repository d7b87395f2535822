"""Windows of one target with the cursor that belongs to them, as they wait for the database."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from specwatch.domain.model import Batch
from specwatch.store.counts import PackedWindow, pack
from specwatch.store.cursor_rows import PackedCursor, pack_cursor
from specwatch.store.texts import shared_size


class PackedBatch(msgspec.Struct, frozen=True, gc=False):
    """Packed windows of one target, and the cursor that belongs to exactly them."""

    windows: tuple[PackedWindow, ...]
    cursor: PackedCursor | None

    def __iter__(self) -> Iterator[PackedWindow]:
        return iter(self.windows)

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def size(self) -> int:
        """Its bytes in memory, without what the batches of usual servers share."""
        size = sum(len(window.row) for window in self.windows)
        if self.cursor is not None:
            size += len(self.cursor.counters) + shared_size(self.cursor.layout)
        return size


def pack_batch(batch: Batch) -> PackedBatch:
    """Pack the windows of a batch and its cursor. Raises ValueError as :func:`pack` does."""
    cursor = None if batch.cursor is None else pack_cursor(batch.cursor)
    return PackedBatch(tuple(map(pack, batch.windows)), cursor)
