"""HeadKV's rules (kind ``headkv``): types of heads and evicted entries. Not official: two computations of one reading of the paper."""

from typing import Any

import torch

from cachemark.methods.headkv import local_heads, stratified

from ..checks import Check, Kind, Vector


def local_of(vector: Vector, number: int, latest: int) -> list[bool]:
    """Return of each head whether its ``latest`` keys hold tau of the attention of the current query."""
    q, k = vector[f"{number}/queries"][None, :, -1], vector[f"{number}/keys"][None]
    near = (torch.arange(k.size(2)) >= k.size(2) - latest)[None, None]
    return local_heads(q, k, torch.ones(1, 1, 1, dtype=torch.bool), near, vector.facts["cases"][number]["tau"])[0].tolist()


def types(_: Any, vector: Vector) -> float:
    """Count the heads with another type, or which need another number of keys: as many hold tau, and one less do not."""
    wrong = 0
    for number, case in enumerate(vector.facts["cases"]):
        local = local_of(vector, number, case["window"] - 1)
        wrong += sum((kind == "local") != found for kind, found in zip(case["types"], local, strict=True))
        wrong += sum(not local_of(vector, number, needed)[head] or local_of(vector, number, needed - 1)[head]
                     for head, needed in enumerate(case["needed"]))
    return float(wrong)


def evicted(score: str) -> Check:
    def measure(_: Any, vector: Vector) -> float:
        wrong = 0
        for number, case in enumerate(vector.facts["cases"]):
            for noted in case["evict"]:
                head, first = slice(noted["head"], noted["head"] + 1), case["cond"]
                q, k = vector[f"{number}/queries"][None, head], vector[f"{number}/keys"][None, head, first : first + noted["history"]]
                ranks = stratified(q, k, noted["share"], noted["evicted"], softmax=score == "softmax")
                wrong += sorted(ranks.flatten().tolist()) != noted[score]
        return float(wrong)

    return Check(f"evicted_{score}", 0.0, measure, ("*/queries", "*/keys"))


KINDS = {
    "headkv": Kind(lambda vector: None, (Check("types", 0.0, types, ("*/queries", "*/keys")), evicted("logits"), evicted("softmax")),
                   "types of heads and evicted entries by two computations of one reading of the paper, which has no code", ("headkv",)),
}
