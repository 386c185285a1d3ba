"""Exchange files: what goes in comes out, and what is not an exchange file is refused in clear words."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_examples import CODE, ENVIRONMENT, failed, objects, ok, outcomes, texts

from cachemark.core.errors import BadBaseline
from cachemark.core.result import Environment, Outcome
from cachemark.core.units import METRICS
from cachemark.store.exchange import FORMAT_VERSION, dump, load, rounded

environments = st.builds(Environment, texts, texts, texts, objects)


def text_of(*outcomes: Outcome, **meta: Any) -> str:
    return dump(outcomes or [ok(1), ok(2), failed(3)], ENVIRONMENT, CODE, **meta)


@settings(max_examples=20, deadline=None)
@given(st.lists(outcomes, max_size=3, unique_by=lambda outcome: outcome.case.key), environments, objects)
def test_round_trip(saved: list[Outcome], environment: Environment, code: dict[str, Any]) -> None:
    text = dump(saved, environment, code, plan="demo")
    back = load(text, "x")
    expected = [dataclasses.replace(o, samples={n: rounded(n, v) for n, v in o.samples.items()}) for o in saved]
    assert list(back.outcomes) == sorted(expected, key=lambda o: (o.case.label, o.case.key))
    assert (back.environment, back.code, back.meta) == (environment, code, {"plan": "demo"})
    assert back.metrics == {name: METRICS[name].version for o in saved for name in o.samples}
    assert dump(back.outcomes, back.environment, back.code, **back.meta) == text, "the text is stable"


def test_speed_is_rounded_and_everything_else_is_exact() -> None:
    third = 1 / 3
    back = load(text_of(ok(samples={"latency": [third], "kl": [third], "kv_logical": [2.0**53 + 2]})), "x").outcomes[0]
    assert back.samples == {"latency": [0.333333333], "kl": [third], "kv_logical": [2.0**53 + 2]}


def edited(**fields: Any) -> str:
    return json.dumps({**json.loads(text_of()), **fields})


def edited_outcome(**fields: Any) -> str:
    """A file whose last outcome, one that was ok, has other fields."""
    outcomes = json.loads(text_of())["outcomes"]
    good = next(outcome for outcome in outcomes if outcome["status"] == "ok")
    return edited(outcomes=[*(outcome for outcome in outcomes if outcome is not good), {**good, **fields}])


@pytest.mark.parametrize(("text", "match"), [
    *((text_of()[:end], "cannot be read") for end in range(0, len(text_of()) - 2, 97)),
    *((text, "is not an exchange file of cachemark") for text in ("[]", "{}", "3", '{"format": "asv"}', "null")),
    (edited(version=FORMAT_VERSION + 1), f"format {FORMAT_VERSION + 1}; .* up to {FORMAT_VERSION}.*Upgrade"),
    (edited(version="1"), "which is not a version"),
    (edited(outcomes=3), "has outcomes = 3: Input should be a valid array"),
    (edited(environment={}), r"lacks environment\.device\."),
    (edited(metrics={"latency": "one"}), r"has metrics\.latency = 'one': Input should be a valid integer"),
    (edited_outcome(samples={"latencyy": [1.0]}), r"outcomes\.2: .*'latencyy'.*Did you mean 'latency'"),
    (edited_outcome(samples={"latency": ["fast"]}), r"outcomes\.2\.samples\.latency\.0 = 'fast'"),
    (edited_outcome(samples={"latency": []}), r"outcomes\.2\.samples\.latency"),
    (edited_outcome(samples={"latency": [-1.0]}), r"outcomes\.2\.samples\.latency = \[-1.0\]: a value is negative"),
    (edited(meta={"expires": "9999-12-31T00:00"}), r"has meta\.expires"),
    (edited_outcome(samples={"latency": [1.0]}, judgement=""), "needs samples and a judgement"),
    (edited_outcome(status="fine"), "'fine'"),
    (edited_outcome(status="oom"), "has a log and no values"),
    (edited_outcome(case={"model": "m"}), r"lacks outcomes\.2\.case\.weights"),
    (edited_outcome(samples=None), r"has outcomes\.2\.samples = None: "),
    (text_of().replace("0.25", "NaN"), r"cannot be read: .* line \d+ column"),
    (text_of().replace("0.25", "1e999"), "finite"),
    ('{"a":' * 200_000, "recursion limit"),
])
def test_what_is_no_exchange_file_is_refused(text: str, match: str) -> None:
    with pytest.raises(BadBaseline, match=match) as caught:
        load(text, "here.json")
    assert "here.json" in str(caught.value)
    assert caught.value.remedy
