import cachemark as cm
from cachemark.methods.base.evicting import lowest


@cm.method("layer_budgets")
class LayerBudgets(cm.Scored):
    """Keep as many entries more in the first half of the layers as fewer in the other (after PyramidKV)."""

    def budget_of(self, layout, layer):
        extra = min(self.B // 4, max(0, layout.visual - self.B))
        return self.B + extra * ((layer < layout.layers // 2) - (layer >= (layout.layers + 1) // 2))

    def capacity(self, layout, site):
        return layout.longest_condition + min(self.budget_of(layout, site.layer) + self.slack, layout.cacheable)

    def attended(self, layout, site, step):
        return layout.longest_condition + min(step.first, self.budget_of(layout, site.layer)) + step.count

    def evict(self, step, slots):
        if slots.live_visual > self.budget_of(self.layout, slots.sites[0].layer):
            score = -slots.keys().norm(dim=-1).masked_fill(slots.table() < 0, -float("inf"))
            slots.evict(lowest(score.float(), slots.table(), 1))
