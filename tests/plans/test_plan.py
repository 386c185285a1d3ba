"""Plans and their cases, and errors of wrong plans."""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cachemark.core.errors import BadBudget, BadParameter, BadPlan, UnknownName
from cachemark.core.spec import Case, Sampling
from cachemark.models.tiny.tokenizers import VQ_WEIGHTS, TinyVQ, TinyVQConfig
from cachemark.plans.expand import expand
from cachemark.plans.planned import Planned
from cachemark.plans.schema import Plan, find, load, prepare
from cachemark.plugins import loading as plugins
from support import examples
from support.stages import forgetting

from .bad_plans import BAD, GOOD, SECOND

Write = Callable[[str], Plan]


@pytest.fixture(autouse=True)
def _dot(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "dot.py").write_text(examples.MODEL)
    with forgetting():
        plugins.load(tmp_path / "dot.py")
        yield


def labels(planned: list[Planned]) -> list[str]:
    return [p.case.label for p in planned]


def test_a_wrong_plan_and_no_toml_and_no_file_are_refused_with_file_line_and_words(write: Write, tmp_path: Path) -> None:
    for bad in BAD:
        with pytest.raises(bad.kind) as caught:
            expand(write(bad.text))
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / 'plan.toml'}:{bad.line}: "), bad.name
        assert all(words in message for words in bad.words), (bad.name, message)
        assert "\n" not in message
        assert len(message) < len(str(tmp_path)) + 320, "one short message"
    for text in ("name = \n", '"""', "a = 1\na = 2\n", "\x00"):
        with pytest.raises(BadPlan, match=r"plan\.toml: not TOML: .*(line \d+|end of document)"):
            write(text)
    with pytest.raises(BadPlan, match=r"is not a file that can be read\. Shipped plans: .*demo"):
        find(str(tmp_path))


def test_the_full_cache_and_its_reference_rows_come_first(write: Write, tmp_path: Path) -> None:
    planned = expand(write(examples.plan_text('"streaming", "calm"', weights=examples.weights(tmp_path / "dot.safetensors"))))
    assert [(p.case.method, p.case.role) for p in planned] == [
        ("full", "baseline"), ("full", "other_seeds"), ("full", "other_batch"), ("streaming", "candidate"), ("calm", "candidate"),
    ]  # fmt: skip
    assert len({p.case.cell for p in planned}) == 1
    planned = expand(write(examples.plan_text('"streaming"')))
    assert [(p.case.role, p.case.weights) for p in planned] == [("baseline", "random:0"), ("candidate", "random:0")]


def test_every_setting_of_the_plan_arrives_in_the_case(write: Write, tmp_path: Path) -> None:
    checkpoint = examples.weights(tmp_path / "dot.safetensors")
    drawn = "{ cfg_scale = 2.0, cfg_interval = 3, temperature = 0.5, top_k = 4, top_p = 0.75 }"
    cells = f'dtype = "bfloat16"\nrandom_seed = 9\nsampling = {drawn}'
    plan = write(examples.plan_text('{ name = "streaming", sinks = 2 }', weights=checkpoint, batch=3, samples=3, cells=cells))
    planned = expand(plan)[-1]
    sampling = Sampling(cfg_scale=2.0, cfg_interval=3, temperature=0.5, top_k=4, top_p=0.75)
    assert planned.case == Case(
        "dot", planned.case.weights, (4, 4), "10 classes, balanced", sampling, "streaming", {"B": 8, "sinks": 2}, budget="1/2", batch=3,
        seeds="s64", samples=3, dtype="bfloat16", warmup=examples.WARMUP, repeats=examples.REPEATS,
    )
    request = planned.request
    assert (request.device, request.dtype, request.weights, request.seed) == ("cpu", torch.bfloat16, str(checkpoint), 9)


def test_equal_budgets_are_one_case(write: Write) -> None:
    text = examples.plan_text('"streaming"')
    assert labels(expand(write(text.replace('"1/2"', '"3/4", 0.75, "6/8", "1/2", 1')))) == [
        "full", "streaming 3/4", "streaming 1/2", "streaming 1"]
    block = text[text.index("[[cells]]") :]
    assert labels(expand(write(text + block.replace("streaming", "calm").replace("1/2", "0.5")))) == ["full", "streaming 1/2", "calm 1/2"]
    assert labels(expand(write(text + block.replace("batch = 2", "batch = 1")))) == ["full", "streaming 1/2"] * 2


def test_a_budget_may_be_the_bytes_of_a_codec(write: Write) -> None:
    """So that forgetting and rounding are compared at equal bytes: a head of the tests' model is 8 wide, in fp32."""
    text = examples.plan_text('"streaming"')
    for codec, share in (("int8", Fraction(8 + 4, 8 * 4)), ("int4", Fraction(4 + 2 + 2, 8 * 4))):
        planned = expand(write(text.replace('"1/2"', f'{{ name = "full", codec = "{codec}" }}')))
        assert labels(planned) == ["full", f"streaming {share}"]
    with pytest.raises(BadBudget, match="full needs a budget here: it has no sizes of its own"):
        expand(write(text.replace('"1/2"', '{ name = "full" }')))


def test_keys_are_grouped_where_tokens_arrive_one_by_one_and_the_reference_engine_stores_natively(write: Write) -> None:
    """That engine is the papers' full cache: no method and no codec of ours runs in it, and none may be reported under its name."""
    text = examples.plan_text('"streaming"', cells='codecs = ["kivi4"]')
    assert not any(planned.unsupported_reason for planned in expand(write(text)))
    scales = text.replace('"dot"', '"tiny-var"')
    assert scales != text
    reasons = {planned.case.label: planned.unsupported_reason for planned in expand(write(scales))}
    assert {label for label, reason in reasons.items() if "order of their arrival" in reason} == {"full kivi4", "streaming 1/2 kivi4"}
    planned = expand(write(examples.plan_text('"streaming"', cells='engine = "reference"\ncodecs = ["native", "int8"]')))
    assert {p.case.label: bool(p.unsupported_reason) for p in planned} == {
        "full": False, "streaming 1/2": True, "full int8": True, "streaming 1/2 int8": True,
    }  # fmt: skip


def test_an_unmet_budget_is_an_error_or_a_case_that_says_why(write: Write) -> None:
    text = examples.plan_text('{ name = "streaming", sinks = 8 }, "calm"')
    with pytest.raises(BadBudget, match="8 sinks"):
        expand(write(text))
    planned = expand(write(text.replace("timeout", 'on_unsupported = "unsupported"\ntimeout')))
    assert labels(planned) == ["full", "streaming 1/2", "calm 1/2"]
    assert [p.unsupported_reason for p in planned] == ["", "streaming: 8 sinks do not fit in B = 8. Use sinks in 0 … 7.", ""]


def test_more_methods_join_every_block_once(write: Write) -> None:
    plan = write(GOOD + SECOND).joined(["calm", "window"])
    assert [c.methods for c in plan.cells] == [["streaming", "calm", "window"], ["calm", "window"]]
    own = write(GOOD.replace('"streaming"', '{ name = "streaming", sinks = 2 }')).joined(["streaming"])
    assert [getattr(method, "name", method) for method in own.cells[0].methods] == ["streaming", "calm"], "it keeps its parameters"
    with pytest.raises(UnknownName, match=r"^--method clam: Unknown method 'clam'"):
        expand(plan.joined(["clam"]))


def test_a_method_that_was_added_is_no_fault_of_a_line_of_the_plan(write: Write, tmp_path: Path) -> None:
    """The line of the plan is named where the method stands on it."""
    masked = write('name = "m"\n[[cells]]\nmodel = "tiny-mar"\nmethods = ["full"]\n')
    with pytest.raises(BadBudget, match=r"^--method linear: linear does not run on masked models"):
        expand(masked.joined(["linear"]))
    with pytest.raises(BadBudget, match=rf"^--plugin {tmp_path}/dot\.py: calm does not run on masked models"):
        expand(prepare(masked, [tmp_path / "dot.py"])[0])
    both = write('name = "m"\n[[cells]]\nmodel = "tiny-mar"\nmethods = ["linear"]\n')
    with pytest.raises(BadBudget, match=r"plan\.toml:4: linear does not run on masked models"):
        expand(both.joined(["linear"]))
    with pytest.raises(BadBudget, match=r"linear does not run on masked models\."):
        expand(load("demo").only(models=["tiny-mar"]).joined(["linear"]))


def test_more_methods_join_the_blocks_of_their_kind_of_model(tmp_path: Path) -> None:
    """As the guide of plug-ins has it: knorm is for next-token models, calm for next-scale ones too."""
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-method.md"
    (tmp_path / "knorm.py").write_text(guide.read_text().partition("```python\n# knorm.py\n")[2].partition("```")[0])
    joined, files = prepare("demo", [tmp_path / "knorm.py", tmp_path / "dot.py"])
    named = joined.model_copy(update={"plugins": [str(tmp_path / "dot.py")]})
    assert prepare(named, [tmp_path / "knorm.py", tmp_path / "dot.py"])[1] == files, "each file once"
    joined_cases = {(p.case.model, p.case.method) for p in expand(joined) if p.case.method in ("knorm", "calm")}
    assert joined_cases == {("tiny-llamagen", "knorm"), ("tiny-llamagen", "calm"), ("tiny-var", "calm")}


BASE = Case("m", "random:0", (4, 4), "c", Sampling(), "streaming", {"B": 8})
OTHER = {
    "model": "n", "weights": "random:1", "grid": (4, 5), "conditions": "d", "sampling": Sampling(top_k=1), "method": "window",
    "parameters": {"B": 9}, "codec": "int8", "budget": "1/2", "batch": 2, "seeds": "s256", "samples": 63, "dtype": "float16",
    "engine": "reference", "device_class": "cuda", "warmup": 3, "repeats": 6, "role": "other_seeds", "evaluation": {"filter": "box"},
    "variant": "calm", "decoder": {"name": "jacobi", "window": 4}, "budget_kind": "FLOPs", "kernel": "sdpa",
}  # fmt: skip
OTHER_SAMPLING = {"cfg_scale": 1.5, "cfg_schedule": "linear", "cfg_interval": 0, "temperature": 0.5, "top_k": 1, "top_p": 0.5, "steps": 1,
                  "diffusion_steps": 1}  # fmt: skip


def test_every_field_makes_another_case() -> None:
    others = [replace(BASE, **{each.name: OTHER[each.name]}) for each in fields(Case)]
    others += [replace(BASE, sampling=replace(BASE.sampling, **{each.name: OTHER_SAMPLING[each.name]})) for each in fields(Sampling)]
    assert len({BASE.key, *(case.key for case in others)}) == len(others), "one sampling is in both tables"


def test_what_changes_no_number_makes_no_other_case_and_another_decoder_does(tmp_path: Path, write: Write) -> None:
    text, keys = examples.plan_text('"streaming"'), []
    for edit in (("timeout = 60.0", "timeout = 61.0"), ("timeout", 'description = "x"\ntrial = "case"\ntimeout')):
        assert [p.case for p in expand(write(text.replace(*edit)))] == [p.case for p in expand(write(text))]
    for name in ("one", "two", "one"):
        torch.manual_seed(len(name) + (name == "two"))
        state = {n: t.half() for n, t in TinyVQ(TinyVQConfig()).state_dict().items()}
        save_file(state, tmp_path / name, metadata={"cachemark": json.dumps(VQ_WEIGHTS.metadata(TinyVQConfig()))})
        block = f'[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\ndecoder_weights = "{tmp_path / name}"\n'
        keys.append({planned.case.key for planned in expand(write(f'name = "tiny"\n{block}'))})
    assert keys[0] == keys[2]
    assert not keys[0] & keys[1]


def test_the_same_weights_elsewhere_are_the_same_case(tmp_path: Path, write: Write) -> None:
    checkpoint, copy = examples.weights(tmp_path / "dot.safetensors"), tmp_path / "copy.safetensors"
    copy.write_bytes(checkpoint.read_bytes())
    first, second = (expand(write(examples.plan_text('"streaming"', weights=file))) for file in (checkpoint, copy))
    assert [p.case for p in first] == [p.case for p in second]
    examples.weights(copy, seed=1)
    assert not {p.case.key for p in first} & {p.case.key for p in expand(write(examples.plan_text('"streaming"', weights=copy)))}


def test_a_plan_can_be_cut_down_to_some_of_its_candidates_by_variant_and_method(write: Write) -> None:
    few = load("bundled").only(models=["tiny-llamagen"], methods=["linear", "streaming"], budgets=["1/4"])
    assert [p.case.label for p in expand(few)] == ["full", "full (other seeds)", "full (other batch)", "streaming 1/4", "linear 1/4"]
    everything = {p.case.key for p in expand(load("bundled"))}
    assert {p.case.key for p in expand(few)} <= everything
    assert few.only(budgets=[0.25]) == few
    assert [p.case.role for p in expand(few.only(methods=["full"]))] == ["baseline", "other_seeds", "other_batch"]
    methods = '[{name = "linear", anchor = 0, variant = "no anchor"}, {name = "linear", variant = "plain"}, "window"]'
    plan = write(f'name = "v"\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = {methods}\n')
    def candidates(*methods: str) -> list[str]:
        return [p.case.label for p in expand(plan.only(methods=methods)) if p.case.role == "candidate"]

    assert candidates("linear: no anchor") == candidates("no anchor") == ["linear: no anchor 1/2"]
    assert candidates("linear") == ["linear: no anchor 1/2", "linear: plain 1/2"]


def test_nothing_left_of_a_plan_is_an_error_and_a_parameter_is_a_number_that_a_float_holds(write: Write) -> None:
    blocks = "".join(f'[[cells]]\nmodel = "{model}"\nmethods = ["{method}"]\n'
                     for model, method in (("tiny-llamagen", "window"), ("tiny-var", "ams_kv")))
    plan = write(f'name = "two"\n{blocks}')
    with pytest.raises(BadPlan, match="No block of plan two"):
        plan.only(models=["tiny-var"], methods=["window"])
    assert plan.only(methods=["ams_kv"]).place("cells", 0, "model").endswith(":6"), "a line of the file"
    for only, words in (({"models": ["tiny-lamagen"]}, "tiny-llamagen"), ({"budgets": ["1/3"]}, "budget of plan two")):
        with pytest.raises(UnknownName, match=words):
            plan.only(**only)
    for value in ("inf", "1" + "0" * 400):
        with pytest.raises(BadParameter, match="is not finite"):
            expand(write(f'name = "p"\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = [{{ name = "linear", anchor = {value} }}]\n'))
