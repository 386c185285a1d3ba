import torch

import cachemark as cm
from cachemark.contract.method import Method
from cachemark.contract.planning import MethodOverhead
from cachemark.core.errors import BadParameter
from cachemark.methods.base.evicting import visual_budget


@cm.method("page_selection")
class PageSelection(Method):
    """Keep everything and read the pages whose keys may match the query best, and the newest page (after Quest)."""

    selects = True

    B: int = 0
    page: int = 4

    @classmethod
    def parameters_for(cls, budget, layout):
        return {"B": visual_budget(budget, layout)}

    def resolve(self, layout):
        if self.page > self.B:
            raise BadParameter(f"page_selection: B = {self.B} is less than a page.", remedy=f"Use at least {self.page}.")

    def count(self, live):
        return min(live, self.B)

    def selection(self, site, step, slot, q):
        live, pages = slot.live_visual, -(-slot.live_visual // self.page)
        keys = slot.visual_keys().float()
        padding = (0, 0, 0, pages * self.page - live)
        low = torch.nn.functional.pad(keys, padding, value=float("inf")).unflatten(2, (pages, self.page)).amin(3)
        high = torch.nn.functional.pad(keys, padding, value=-float("inf")).unflatten(2, (pages, self.page)).amax(3)
        queries = q[:, :, 0].float().unflatten(1, (keys.size(1), -1)).mean(2)[:, :, None]
        score = torch.maximum(queries * low, queries * high).sum(-1)
        score[..., -1] = float("inf")
        entry = score.repeat_interleave(self.page, -1)[..., :live] - 1e-3 * torch.arange(live, device=q.device) / live
        return entry.topk(self.count(live), dim=-1).indices

    def graph_key(self, step):
        return None

    def attended(self, layout, site, step):
        return layout.longest_condition + self.count(step.first + step.count)

    def overhead(self, layout, site, step):
        return MethodOverhead(0, 2 * layout.kv_heads * layout.head_dim * (step.first + step.count))
