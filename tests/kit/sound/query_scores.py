import cachemark as cm
from cachemark.contract.planning import MethodOverhead
from cachemark.methods.base.evicting import ring


@cm.method("query_scores")
class QueryScores(cm.Scored):
    """Keep the entries that the latest queries attend to most, with scores that it declares as its own work."""

    window: int = 2

    def prepare(self, slots, memory):
        self.queries = ring(memory, slots, self.window)

    def observe(self, site, step, slot, q, mass):
        if step.count:
            self.queries[slot.index, :, :, step.first % self.window] = q[:, :, 0]

    def graph_key(self, step):
        return step.first % self.window

    def score(self, step, slots):
        keys = slots.keys().float()
        queries = self.queries.float().unflatten(2, (keys.size(2), -1))
        return (queries @ keys.mT[:, :, :, None]).amax(dim=(3, 4)).masked_fill(slots.table() > step.first - 2, float("inf"))

    def overhead(self, layout, site, step):
        products, numbers = super().overhead(layout, site, step)
        if self.evicted(layout, step):
            entries = layout.longest_condition + self.B + 1
            products += self.window * layout.heads * entries * layout.head_dim
            numbers += layout.kv_heads * entries * layout.head_dim
        return MethodOverhead(products, numbers)
