import torch

import cachemark as cm


@cm.method("own_attention")
class OwnAttention(cm.Scored):
    """Keep the entries with the smallest key norm, with attention written out; it differs from the model's in the last bit."""

    def attend(self, site, step, q, k, v):
        slot = self.slots[site]
        slot.append(k, v, condition=step.count == 0)
        if self.workspace is not None:
            self.workspace.put(slot)
        source, outs = self.workspace or slot, []
        for run, n in zip(slot.bank.runs, slot.live, strict=True):
            keys, values = source.read(run, n)
            group = q.size(1) // keys.size(1)
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            logits = (q[run.rows] * q.size(-1) ** -0.5) @ keys.mT
            if step.causal:
                logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), float("-inf"))[..., :n]
            outs.append(logits.softmax(-1) @ values)
        return torch.cat(outs)

    def graph_key(self, step):
        return step.count

    def score(self, step, slots):
        return -slots.keys().norm(dim=-1)
