"""Any case, any outcome: Hypothesis strategies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from store_examples import case

from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Sampling
from cachemark.core.units import METRICS

# Text that JSON and both databases hold as it is: no half characters and no NUL.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
finite_floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), finite_floats, texts)
plain = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6)
objects = st.dictionaries(texts, plain, max_size=4)
cases = st.builds(case, st.integers(0, 10**6), method=texts, parameters=objects, codec=texts, seeds=texts, batch=st.integers(1, 64),
                  evaluation=objects, sampling=st.builds(Sampling, cfg_scale=st.floats(-1_000, 1_000), top_k=st.integers(0, 99)))
positive = st.floats(min_value=2**-50, allow_infinity=False)  # as times, rates and bytes are
sampled = st.one_of(
    st.tuples(st.sampled_from(sorted(METRICS)), st.lists(positive, min_size=1, max_size=8)),
    st.tuples(st.sampled_from(sorted(name for name, of in METRICS.items() if of.kind in ("fidelity", "quality"))),
              st.lists(finite_floats, min_size=1, max_size=8)),
)
metric_values = st.lists(sampled, min_size=1, max_size=6).map(dict)
rest: dict[str, Any] = {"log": texts, "seconds": st.floats(0, 1e9), "result_key": texts, "output_hash": texts,
                        "facts": objects.map(Facts.from_json)}
ok_outcomes = st.builds(Outcome, cases, st.just(Status.OK), metric_values, texts.filter(bool), **rest)
failed_outcomes = st.builds(Outcome, cases, st.sampled_from([s for s in list(Status) if s is not Status.OK]), judgement=texts,
                            **{**rest, "log": texts.filter(bool)})
outcomes = st.one_of(ok_outcomes, failed_outcomes)
