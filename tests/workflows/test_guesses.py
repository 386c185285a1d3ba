"""Calls that a new user guesses: each works, or fails with one line that names what to write.

Most are those of a trial of the Python interface; others are the names of diffusers, kvpress and lm-evaluation-harness.
"""

from pathlib import Path
from typing import Any

import pytest

import cachemark as cm
from cachemark.core.errors import CachemarkError
from cachemark.methods.window import Window
from cachemark.plans.expand import expand
from cachemark.plans.schema import Cells, Plan
from cachemark.report.page.render import chart_sets
from cachemark.workflows.measure import plan_of
from support import stages
from support.later import later

charts, convert = later("cachemark.export.altair_charts"), later("vl_convert")
WORKS = ""
GENERATE = {  # arguments of generate on a model of classes, and what the error names
    "labels=[3]": WORKS, "labels=3": WORKS, "seeds=[5]": WORKS, "seeds=2": WORKS, "guidance=2.5": WORKS, "batch=1": WORKS,
    "progress=False": WORKS, "sampling={'temperature': 0.9}": WORKS, "method='window', budget='1/2'": WORKS,
    "method='window', budget=0.5": WORKS, "method=Window(B=100)": WORKS, "method=Window": WORKS, "method='window', B=100": WORKS,
    "[3, 4]": WORKS, "range(2)": WORKS,
    "prompt='a'": "prompts=", "text='a'": "prompts=", "captions=['a']": "prompts=", "label=3": "labels=", "class_labels=[3]": "labels=",
    "classes=[3]": "labels=", "y=[3]": "labels=", "seed=5": "seeds=", "n=2": "seeds=", "num_images=2": "seeds=", "images=2": "seeds=",
    "num_images_per_prompt=2": "seeds=", "generator=5": "seeds=", "samples=2": "seeds=", "cfg=9": "guidance=", "cfg_scale=9": "guidance=",
    "guidance_scale=9": "guidance=", "batch_size=2": "batch=", "temperature=0.1": 'sampling={"temperature"', "top_k=5": 'sampling={"top_k"',
    "top_p=0.5": 'sampling={"top_p"', "num_inference_steps=8": 'sampling={"steps"', "dtype='bfloat16'": "cm.load(…, dtype=…)",
    "device='cuda'": "cm.load(…, device=…)", "engine='graph'": "cm.load(…, engine=…)", "methods='window'": "method=",
    "press='h2o'": "method=",
    "name='window'": "method=", "cache='h2o'": "method=", "compression_ratio=0.5": "budget=, the fraction that is kept",
    "budgets='1/2'": "budget=",
    "decoders='zipar'": "decoder=", "quantization='int8'": "codec=", "nonsense=1": "Known:", "sedes=1": "Did you mean 'seeds'",
    "store_last=True": "Known:", "method='window', batch_size=2": "batch=", "method='window', nonsense=1": "Known:",
    "method='window', variant='x'": "Known:", "method=7": 'method="window"', "prompts='two red stars'": "labels=[3]",
    "'two red stars'": "prompts=",
}
CALLS = {
    "t.generate('two red stars')": "prompts=", "t.generate(prompts='two red stars')": WORKS, "t.generate(labels=3)": "prompts=",
    "m([3])": WORKS, "m.generate(seeds=1).tokens": WORKS, "m.to('cuda')": 'cm.load(…, device="cuda")', "m.cuda()": "device=",
    "m.half()": 'dtype="float16"', "m.methods": "cm.methods()", "m.sample()": ".generate(",
    "im[0].size": WORKS, "im[-1].size": WORKS, "im[:1][0].size": WORKS, "len(im)": WORKS, "list(im)": WORKS, "im.numpy().shape": WORKS,
    "im.save(str(folder / 'x.png'))": WORKS, "im.save(f'{folder}/each/')": WORKS, "im.save(folder)": WORKS, "im.save('x.jpg')": "'x.png'",
    "im.pil()": "im[0]", "im.show()": "im[0].show()", "im.to_numpy()": "im.numpy()", "im.latency": "im.seconds", "im.images": WORKS,
    "im.seconds": WORKS, "im.kv_bytes": WORKS,
    "cm.load('tiny-var', dtype='bf16')": "bfloat16", "cm.load('tiny-var', device='mps')": "cpu, cuda",
    "cm.load('FoundationVision/LlamaGen')": "llamagen", "cm.load('tiny-lamagen')": "Did you mean 'tiny-llamagen'",
    "cm.load('tiny-var', torch_dtype='float16')": "dtype=", "cm.load('tiny-var', checkpoint='x')": "weights=",
    "cm.load('tiny-var', revision='x')": "hf:org/repo@revision", "cm.load(model='tiny-var')": "name=",
    "cm.plan('demo')": WORKS, "repr(cm.plan('demo'))": WORKS, "cm.plan('demo').only(methods='rkv')": WORKS,
    "cm.plan('demo').only(method='rkv')": "methods=", "cm.plan('demmo')": "Did you mean 'demo'",
    "cm.plan({'name': 'x', 'cells': [{'model': 'tiny-var', 'methods': ['window']}]})": WORKS, "cm.plan({'cells': []})": "name:",
    "expanded([{'name': 'full', 'foo': 1}])": "foo",
    "expanded([{'name': 'full', 'store_last': True}])": "store_last",
    "cm.plan('demo', methods=['rkv'])": ".only(methods=…)",
    "plan_of('tiny-var', 'window', '1/2')": WORKS, "plan_of('tiny-var', ['window', 'h2o'], [0.5])": WORKS,
    "plan_of('tiny-var', Window(B=100))": WORKS, "cm.measure('tiny-var', method='window')": "methods=",
    "cm.measure('tiny-var', 'window', budget='1/2')": "budgets=", "cm.measure('tiny-var', 'window', device='cuda')": "machine=",
    "cm.measure('tiny-var', 'window', n=8)": "seeds=", "cm.measure('tiny-var', 'window', samples=8)": "seeds=",
    "cm.measure('tiny-var', 'window', batch_size=8)": "batch=", "cm.measure('tiny-var', 'window', seeds='8')": "seeds",
    "plan_of('tiny-var', 'window', dtype='bfloat16')": WORKS, "cm.measure(models='tiny-var', methods='window')": "model=",
    "cm.run('demo', models=['tiny-var'])": "only(models=…)", "cm.run('demo', method='rkv')": "methods=",
    "cm.run('demo', device='cuda')": "machine=",
    "cm.run('demo', budget='1h')": "seconds=", "cm.run('demo', threads=2)": "cm.Machine(threads=…)",
    "cm.run('demo', seeds=8)": "cm.measure",
    "cm.compare('demo', ('a', 'b'), minutes=3)": "Terms(minutes=…)", "cm.open(db='x')": "store=", "cm.report(output='x')": "path=",
    "cm.attach(object(), 'rkv')": "Supported: Janus", "cm.Machine('cuda', gpus='10').gpus == ('10',) or 1 / 0": WORKS,
    "list(run)": WORKS, "len(run)": WORKS, "run[0]": WORKS, "run['streaming 1/2'].images()": WORKS, "run.frame()": WORKS,
    "run.plot()": WORKS, "run.plot('speed')": WORKS, "run.plot('memory')": WORKS, "run.plot('quality')": WORKS,
    "run.plot('sped')": "'speed'",
    "run.figures()": 'run.plot("tradeoff")', "run.latex()": "cachemark export latex", "run.markdown()": "cachemark export markdown",
    "run.best()": "run.answers", "run.leaderboard()": "run.report(FILE)", "run.to_csv('x')": "run.frame()", "run.df": "run.frame()",
    "cm.methods().loc['rkv']": WORKS, "cm.methods('tiny-var').loc['ams_kv']": WORKS, "cm.models().loc['tiny-var']": WORKS,
    "cm.plans().loc['demo']": WORKS, "__import__('cachemark.plans.schema').plans.schema.load('demo')": WORKS,
    "cm.list('methods')": "cm.methods()", "cm.generate('tiny-var')": "cm.load(NAME).generate(",
    "cm.advise('llamagen-xl', 'h100', store=None).attrs['text']": WORKS, "cm.advise('llamagen-xl', gpu='h100')": "card=",
    "cm.roofline('llamagen-xl', 'h100', batches=64)": WORKS, "cm.roofline('llamagen-xl', gpu='h100')": "card=",
    "cm.price('demo', card='h100')": WORKS, "cm.price('demo', on='h100')": "card=", "cm.score('nowhere')": "nowhere",
    "cm.score('a', reference='b')": "against=", "cm.benchmark('tiny-var')": "cm.measure", "cm.list_models()": "cm.models()",
    "{'load', 'measure', 'score'} <= set(dir(cm)) or 1 / 0": WORKS,
    "run['steaming 1/2']": "Did you mean 'streaming 1/2'",
}


@pytest.fixture(scope="module")
def space(measured: stages.Stage, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a session has after its first minutes; ``plan_of`` is the part of ``cm.measure`` before it measures."""
    model = cm.load("tiny-var")
    return {"cm": cm, "m": model, "t": cm.load("tiny-t2i"), "im": model.generate(seeds=2), "Window": Window, "run": cm.open(measured.store),
            "folder": tmp_path_factory.mktemp("images"), "plan_of": plan_of,
            "expanded": lambda methods: expand(Plan(name="x", cells=[Cells(model="tiny-var", methods=methods)]))}


@pytest.mark.parametrize(("call", "line"), [*((f"m.generate({given})", line) for given, line in GENERATE.items()), *CALLS.items()])
def test_a_guess_works_or_names_what_to_write(space: dict[str, Any], call: str, line: str) -> None:
    if not line:
        eval(call, space)
        return
    with pytest.raises((CachemarkError, AttributeError)) as refused:
        eval(call, space)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_images_are_a_sequence(space: dict[str, Any], tmp_path: Path) -> None:
    im = space["im"]
    assert [image.tobytes() for image in im] == [pixels.tobytes() for pixels in im.numpy()]
    assert (im[1].size, im[-1].tobytes(), len(im)) == ((64, 64), im[1].tobytes(), 2)
    im.save(f"{tmp_path}/each/")
    assert len([*(tmp_path / "each").iterdir()]) == 2


@pytest.mark.parametrize("kind", ["tradeoff", "speed", "memory", "quality"])
def test_a_plot_has_the_charts_of_the_page(space: dict[str, Any], kind: str) -> None:
    drawn = space["run"].plot(kind)
    shown = [chart.title for drawing in chart_sets(space["run"].view) for chart in drawing.on_tab(charts.TABS[kind]) if chart.plot]
    svg = convert.vegalite_to_svg(drawn.to_json())
    assert shown
    assert [title for title in shown if f">{title}<" not in svg] == []


def test_objects_mean_what_their_names_do(space: dict[str, Any]) -> None:
    m = space["m"]
    by_name, by_object = m.generate([3], method="window", B=100), m.generate([3], method=Window(B=100))
    assert by_name.case == by_object.case
    assert by_name.tokens.equal(by_object.tokens)
    assert plan_of("tiny-var", "window", "1/2") == plan_of("tiny-var", ["window"], ["1/2"])
    assert len(GENERATE) + len(CALLS) >= 110
