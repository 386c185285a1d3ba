"""The side of a method that holds entries during one generation: slots, the stage, and what is evicted at the end of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..cache.arena import Memory
from ..cache.bank import SlotBank
from ..cache.banks import banks
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot, Stage
from .planning import Planning


class Storage(Planning):
    """A slot for every site that stores anything, as large as :meth:`capacity` says.

    Class attributes: ``evict_after`` is the edge at which ``evict`` is called (``token``, ``line`` or none); ``evicts`` and ``skips`` say
    which contract tests apply; ``slack`` is how many entries above its budget a slot may hold during a pass. ``spare`` is set before
    :meth:`begin`: entries above its capacity that a slot holds while a decoder looks ahead, by :func:`~.decoder.spare`.
    """

    evict_after: ClassVar[str] = ""
    evicts: ClassVar[bool] = False
    skips: ClassVar[bool] = False
    slack: ClassVar[int] = 0
    spare: int = 0

    def capacity(self, layout: Layout, site: Site) -> int:
        """Entries that this site's slot must hold. What no later pass reads is not stored; with 0 there is no slot."""
        return layout.stored

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        """Declare storage for one generation. Everything a method keeps comes from ``memory``."""
        memory.begin()
        self.layout = layout
        self.resolve(layout)
        capacity = {site: entries for site in sites if (entries := self.capacity(layout, site))}
        if self.spare:
            capacity = {site: entries + min(self.spare, max(0, layout.stored - entries)) for site, entries in capacity.items()}
        self.banks: list[SlotBank] = banks(layout, capacity, memory)
        self.slots: dict[Site, Slot] = {site: slot for bank in self.banks for site, slot in zip(bank.sites, bank.slots, strict=True)}
        entries = max([bank.reach for bank in self.banks if bank.reach > bank.capacity or not memory.codec.exact], default=0)
        self.stage: Stage | None = Stage(layout, entries, memory) if entries else None
        for bank in self.banks:
            self.prepare(bank, memory)

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Allocate the method's own state for a bank."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        """Drop entries at the edge ``evict_after``, for all sites of a bank at once."""

    def end_step(self, step: Step) -> None:
        """Close a pass: number what it wrote, then evict where the edge ``evict_after`` is complete. Called by the model."""
        for bank in self.banks:
            bank.end_step(step)
            if self.evict_after in step.edges:
                self.evict(step, bank)

    def horizon(self, first: int) -> int:
        """The number of visual tokens from ``first`` on that may be fed before an entry may be evicted or what the method holds would
        depend on which of them stay: as many drafts a decoder may keep at once. Ask :func:`~.decoder.horizon`."""
        return 1

    def beyond(self, first: int) -> int:
        """The number of visual tokens that may be fed behind the :meth:`horizon` in the same pass, of which none stays: what the method
        notes of a pass must be the same without the last ``step.beyond`` of its tokens. Ask :func:`~.decoder.beyond`."""
        return 0

    def roll_back(self, count: int) -> None:
        """Forget the last ``count`` tokens of the pass that has just run, before :meth:`end_step` closes it as if they had not been fed."""
        for bank in self.banks:
            bank.roll_back(count)

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Live entries of every bank's runs of rows: all that the host keeps of what has passed."""
        return tuple(tuple(bank.live) for bank in self.banks)

    @lengths.setter
    def lengths(self, lengths: tuple[tuple[int, ...], ...]) -> None:
        for bank, live in zip(self.banks, lengths, strict=True):
            for slot in bank.slots:
                slot.live[:] = live

    @property
    def logical_bytes(self) -> int:
        """Bytes of live keys and values, all sites together, at the fullest pass."""
        return sum(bank.logical_bytes for bank in self.banks)

    @property
    def high_water_bytes(self) -> int | None:
        """Bytes of live keys and values at the fullest moment between two layers of a pass, where that is known: see
        :class:`~.per_head.PerHead`."""
        return None

    @property
    def live_bytes(self) -> int | None:
        """Bytes of keys and values that live now, all sites together; None where a method fills places that stand from the beginning, so
        that there is no number of live ones."""
        return sum(bank.live_bytes for bank in self.banks)
