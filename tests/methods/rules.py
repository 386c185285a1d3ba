"""Second implementation of the evicting methods: lists of positions and fp64 arithmetic, per K/V head.

Written from the rules, not from the package: no slots, no positions in a buffer, no batches. A rule stores the entries of one head of one
row and layer. ``narrowest`` is the smallest nonzero gap of scores in a decision, so that a test can check that its data is not ambiguous;
``ties`` counts decisions by age alone.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachemark.methods.base import calibrations

Array = NDArray[np.float64]


def softmax(scores: Array) -> Array:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Rule:
    """Keeps everything. ``condition``: its keys; ``keys``, ``queries``, ``mass`` by visual token."""

    def __init__(self, parameters: dict[str, Any], lines: int, line: int) -> None:
        self.B = int(parameters["B"])
        self.parameters, self.lines, self.n = parameters, lines, line
        self.condition: list[Array] = []
        self.keys: dict[int, Array] = {}
        self.mass: dict[int, float] = {}
        self.queries: dict[int, Array] = {}
        self.narrowest = np.inf
        self.ties = 0

    def begin(self, q: Array, k: Array) -> None:
        """The condition: queries (group, tokens, d), keys (tokens, d)."""
        self.condition = list(k)

    def feed(self, token: int, q: Array, k: Array) -> None:
        """One visual token: queries (group, d), key (d,)."""
        self.keys[token], self.queries[token] = k, q
        self.see(token, q)
        self.evict(token)

    def see(self, token: int, q: Array) -> None:
        """Look at the queries of a token that has just entered."""

    def evict(self, token: int) -> None:
        """Drop what has to go now."""

    def scores(self, token: int) -> dict[int, float]:
        """Of the tokens that may go now; the lowest go."""
        raise NotImplementedError

    def drop_lowest(self, score: dict[int, float], count: int) -> None:
        """Of equal scores the older token goes first."""
        ordered = sorted(score, key=lambda token: (score[token], token))
        if count < len(ordered):
            gap = score[ordered[count]] - score[ordered[count - 1]]
            self.narrowest = min(self.narrowest, gap or np.inf)
            self.ties += gap == 0
        for token in ordered[:count]:
            del self.keys[token]

    def logits(self, q: Array, tokens: list[int]) -> Array:
        """q·k/√d of queries (…, d) on the keys of these tokens: (…, len(tokens))."""
        return q @ np.array([self.keys[token] for token in tokens]).T / np.sqrt(q.shape[-1])

    def attention(self, q: Array) -> Array:
        """Of queries (group, d) on the condition and all tokens, by age: (group, entries)."""
        keys = np.array(self.condition + [self.keys[t] for t in sorted(self.keys)])
        return softmax(q @ keys.T / np.sqrt(q.shape[-1]))

    def ends_line(self, token: int) -> bool:
        """Whether ``token`` is the last of a line that is not the last line."""
        return token % self.n == self.n - 1 and token // self.n < self.lines - 1

    def line_is_due(self, token: int) -> bool:
        return self.ends_line(token) and len(self.keys) == self.B

    def latest(self, count: int) -> list[Array]:
        """The queries of the latest tokens."""
        return list(self.queries.values())[-count:]


class Streaming(Rule):
    """The first tokens and the most recent ones."""

    def evict(self, token: int) -> None:
        if len(self.keys) > self.B:
            del self.keys[min(t for t in self.keys if t >= self.parameters.get("sinks", 0))]


class Window(Rule):
    """The most recent; the condition too, unless it is kept."""

    def evict(self, token: int) -> None:
        condition = [] if self.parameters["keep_condition"] else self.condition
        if len(condition) + len(self.keys) > self.B:
            if condition:
                condition.pop(0)
            else:
                del self.keys[min(self.keys)]


class ByToken(Rule):
    """Drops the lowest one as soon as the budget is exceeded."""

    def evict(self, token: int) -> None:
        if len(self.keys) > self.B:
            self.drop_lowest(self.scores(token), 1)


class ByLine(Rule):
    """Drops a line of the lowest at the end of each line that finds the budget full."""

    def evict(self, token: int) -> None:
        if self.line_is_due(token):
            self.drop_lowest(self.scores(token), self.n)


class Attended(Rule):
    """Sums the attention that each token has received."""

    def see(self, token: int, q: Array) -> None:
        self.mass[token] = 0.0
        for weights in self.attention(q)[:, len(self.condition) :]:
            for t, weight in zip(sorted(self.keys), weights, strict=True):
                self.mass[t] += float(weight)


class H2O(Attended, ByToken):
    """Half recent, half of the largest attention so far."""

    def scores(self, token: int) -> dict[int, float]:
        recent = sorted(self.keys)[len(self.keys) - self.B // 2 :]
        return {t: self.mass[t] for t in self.keys if t not in recent}


class Linear(Attended, ByLine):
    """The least attended of the middle region."""

    def scores(self, token: int) -> dict[int, float]:
        recent = (token // self.n + 1 - self.parameters["recent_lines"]) * self.n
        middle = [t for t in sorted(self.keys) if self.parameters["anchor"] <= t < recent]
        if self.parameters["score"] == "accumulated":
            return {t: self.mass[t] for t in middle}
        guides = np.concatenate(self.latest(self.n))
        return dict(zip(middle, softmax(self.logits(guides, middle)).mean(0).tolist(), strict=True))


class RKV(ByLine):
    """Importance against redundancy."""

    def scores(self, token: int) -> dict[int, float]:
        alpha, mix_lambda = self.parameters["alpha"], self.parameters["mix_lambda"]
        live = sorted(self.keys)
        candidates = live[: len(live) - alpha]
        rows = [softmax(self.logits(q, candidates).max(0)) for q in self.latest(alpha)]  # the group is pooled before the softmax
        mean = np.mean(rows, axis=0)
        pooled = [float(mean[max(0, i - 3) : i + 4].max()) for i in range(len(candidates))]
        redundancy = self._redundancy(live)
        return {t: mix_lambda * pooled[i] - (1 - mix_lambda) * redundancy[i] for i, t in enumerate(candidates)}

    def _redundancy(self, live: list[int]) -> Array:
        keys = np.array([self.keys[token] for token in live])
        norms = np.linalg.norm(keys, axis=1)
        cosine = keys @ keys.T / np.maximum(np.outer(norms, norms), 1e-300)
        np.fill_diagonal(cosine, 0.0)
        for i in range(len(live)):
            copies = [j for j in range(len(live)) if cosine[i, j] > 0.5]
            if copies:
                cosine[i, max(copies)] = 0.0
        return softmax(cosine.mean(0))


class SSDHeads(Attended):
    """Spatial heads drop the oldest, semantic ones the least attended, one at a time or by line."""

    def __init__(self, parameters: dict[str, Any], lines: int, line: int) -> None:
        super().__init__(parameters, lines, line)
        shares = calibrations.named("ssd_heads", parameters["calibration"])[1]["recency"][parameters["layer"]][parameters["head"]]
        self.spatial = shares[parameters["near"] - 1] >= parameters["tau"]

    def evict(self, token: int) -> None:
        by_line = self.parameters["buffer"] == "line"
        if not (self.line_is_due(token) if by_line else len(self.keys) > self.B):
            return
        count, live = self.n if by_line else 1, sorted(self.keys)
        if self.spatial:
            for oldest in live[:count]:
                del self.keys[oldest]
        else:
            recent = self.parameters["recent"] or max(1, (self.B - (self.n if by_line else 0)) // 2)
            self.drop_lowest({t: self.mass[t] for t in live[: len(live) - recent]}, count)


class SnapKV(ByLine):
    """Summed attention of the latest queries, averaged over neighbors (zero outside)."""

    def scores(self, token: int) -> dict[int, float]:
        alpha, half = self.parameters["alpha"], self.parameters["pool"] // 2
        candidates = sorted(self.keys)[: len(self.keys) - alpha]
        votes = sum(softmax(self.logits(q, candidates)).mean(0) for q in self.latest(alpha))
        padded = np.concatenate([np.zeros(half), votes, np.zeros(half)])
        return {t: float(padded[i : i + 2 * half + 1].mean()) for i, t in enumerate(candidates)}


class HeadKV(Rule):
    """Local heads drop what is older than the window, global ones half a line of each stratum, at line ends."""

    local: bool | None = None

    def evict(self, token: int) -> None:
        p, stored = self.parameters, token + 1
        start = p["start"] or min(self.B, max(100 * self.lines * self.n // 576, (p["window"] + 1) * self.n))
        if not self.ends_line(token) or stored < start:
            return
        if self.local is None:
            self.local = p["grouped"] and self._is_local(p["window"] * self.n, p["tau"])
        history = [t for t in sorted(self.keys) if t < stored - p["window"] * self.n]
        if self.local:
            for old in history:
                del self.keys[old]
        elif len(self.keys) == self.B:
            far = int(len(history) * p["share"])
            for stratum, count in ((history[:far], self.n - self.n // 2), (history[far:], self.n // 2)):
                rows = [self.logits(q, stratum) for q in self.latest(p["alpha"] or self.n)]
                score = np.mean([softmax(row) if p["score"] == "softmax" else row for row in rows], axis=(0, 1))
                self.drop_lowest(dict(zip(stratum, score.tolist(), strict=True)), count)

    def _is_local(self, window: int, tau: float) -> bool:
        """Count the latest tokens that hold ``tau`` of the attention; the condition is oldest."""
        held = self.attention(self.latest(1)[0])[:, ::-1].cumsum(-1)
        self.narrowest = min(self.narrowest, float(abs(held - tau).min()))
        return 1 + int((held < tau).sum(-1).max()) < window


class TOVA(ByToken):
    """The least attended by the latest query. Of a layer with one K/V head: heads decide together."""

    def scores(self, token: int) -> dict[int, float]:
        weights = self.attention(self.queries[token]).sum(0)[len(self.condition) :]
        return {t: float(weight) for t, weight in zip(sorted(self.keys), weights, strict=True) if t != token}


class KeyNorm(ByLine):
    """The largest keys."""

    def scores(self, token: int) -> dict[int, float]:
        return {t: -float(np.linalg.norm(key)) for t, key in self.keys.items() if t != token}


class KeyDiff(ByLine):
    """The keys nearest to the mean direction."""

    def scores(self, token: int) -> dict[int, float]:
        unit = {t: key / max(float(np.linalg.norm(key)), 1e-12) for t, key in self.keys.items()}
        mean = np.mean(list(unit.values()), axis=0)
        return {t: -float(u @ mean) / max(float(np.linalg.norm(mean)), 1e-12) for t, u in unit.items() if t != token}


RULES: dict[str, type[Rule]] = {
    "streaming": Streaming, "window": Window, "h2o": H2O, "linear": Linear, "rkv": RKV, "ssd_heads": SSDHeads,
    "snapkv": SnapKV, "headkv": HeadKV, "tova": TOVA, "key_norm": KeyNorm, "keydiff": KeyDiff,
}
