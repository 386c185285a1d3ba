import torch

import cachemark as cm
from cachemark.contract.planning import MethodOverhead
from cachemark.methods.base.evicting import lowest


@cm.method("value_merging")
class ValueMerging(cm.Evicting):
    """Evict the largest key and add its value, in equal parts, to the newest entries (after CaM)."""

    evict_after = "token"
    slack = 1
    merges = True

    receivers: int = 2

    def evict(self, step, slots):
        if slots.live_visual > self.B:
            tokens = slots.table()
            newest = tokens.long().topk(self.receivers, dim=-1).indices
            score = -slots.keys().float().norm(dim=-1).masked_fill(tokens < 0, -float("inf")).scatter(-1, newest, -float("inf"))
            places = lowest(score, tokens, 1)
            slots.merge(places, newest, torch.full((*newest.shape, 1), 1 / self.receivers, device=newest.device))
            slots.evict(places)

    def overhead(self, layout, site, step):
        products, numbers = super().overhead(layout, site, step)
        if self.evicted(layout, step):
            products += self.receivers * layout.kv_heads * layout.head_dim
            numbers += layout.kv_heads * layout.head_dim * (2 * self.receivers + layout.longest_condition + self.B + 1)
        return MethodOverhead(products, numbers)
