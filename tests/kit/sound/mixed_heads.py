import cachemark as cm
from cachemark.contract.heads import HeadGroups
from cachemark.methods.base.evicting import visual_budget
from cachemark.methods.h2o import H2O
from cachemark.methods.window import Window


@cm.method("mixed_heads")
class MixedHeads(HeadGroups):
    """A window for the first head of each layer, heavy hitters for the others."""

    B: int = 0

    @classmethod
    def parameters_for(cls, budget, layout):
        return {"B": visual_budget(budget, layout)}

    def served(self, layout, site):
        return [Window(B=self.B), *[H2O(B=self.B)] * (layout.kv_heads - 1)]
