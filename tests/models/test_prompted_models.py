"""Emu3, GLM-Image, Janus-Pro and Lumina-mGPT: prompts, positions and codes, and what is read of published folders."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from official import LUMINA_VQ, spelt, vocabulary, written
from safetensors.torch import save_file

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.core.spec import Sampling
from cachemark.methods.base.paper_baseline import PaddedFull
from cachemark.methods.linear import Linear
from cachemark.models import emu3, glm_image, lumina
from cachemark.models.janus import Janus
from cachemark.models.lined import LinedDecoder
from cachemark.models.prompts import HashedWords, Prompts
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.models.vision.vqgan import VQGAN
from support.tiny_models import EMU3_SIZES, GLM_IMAGE_SIZES, JANUS_SIZES, LUMINA_SIZES, PROMPTS

LABELS = [1, 0, 2]  # of prompts with 7, 3 and 4 ids


class Spelled(HashedWords):
    """Returns one id per character, so that texts can be read from the ids."""

    def ids(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def whole(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids


SPELLED = Spelled(1000)


def test_prompts_are_as_published() -> None:
    prompts = emu3.prompts_of(EMU3_SIZES, (" a star ", "a cat"), SPELLED)
    begin, image, codes = map(SPELLED.special, (emu3.BEGIN, emu3.IMAGE, emu3.CODES))
    assert prompts.conditional[0] == (begin, *map(ord, f"a star{emu3.QUALITY}"), image, *map(ord, "5*4"), codes)
    assert prompts.unconditional == ((begin, *map(ord, emu3.FAULTS), image, *map(ord, "5*4"), codes),) * 2
    begin, end, image = map(SPELLED.special, (glm_image.GRID_BEGIN, glm_image.GRID_END, glm_image.IMAGE))
    sizes = (begin, *map(ord, "32 32"), end, begin, *map(ord, "16 16"), end, image)
    prompts = glm_image.prompts_of(glm_image.PUBLISHED, (" a star ",), SPELLED)
    assert (prompts.conditional, prompts.unconditional) == (((*map(ord, "a star"), *sizes),), (sizes,))
    texts = ("a red star", "two blue birds on a very long branch")
    prompts = lumina.prompts_of(lumina.SIZES["7B-768"], texts, HashedWords(65536))
    assert prompts.unconditional == ((8197, 8828, 8828),) * 2
    assert all(ids[0] == 0 and ids[-4:] == (8710, 8197, 8828, 8828) for ids in prompts.conditional)
    wide = lumina.prompts_of(LUMINA_SIZES, ("a star",), SPELLED).conditional[0]
    assert "Generate an image of 96x64 according to the following prompt:\na star" in "".join(map(chr, wide))
    assert wide[-2:] == (LUMINA_SIZES.ids.size + 2, LUMINA_SIZES.ids.size + 3)
    with pytest.raises(Unsupported, match="this model reads 1026"):
        emu3.prompts_of(emu3.GEN, ("a" * 1000,), SPELLED)


def test_glm_image_places_preview_and_image_samples_codes_and_shows_the_image_alone() -> None:
    table = glm_image.offsets(glm_image.PUBLISHED, torch.device("cpu"))
    assert table.shape == (1280, 3)
    assert table[[0, 17, 255]].tolist() == [[0, 0, 0], [0, 1, 1], [0, 15, 15]]
    assert table[[256, 256 + 33, 1279]].tolist() == [[16, 16, 16], [16, 17, 17], [16, 47, 47]]
    model = glm_image.GlmImage(GLM_IMAGE_SIZES, Prompts(((1, 2, 3), (4, 5, 6, 7)))).initialise(0).eval().requires_grad_(False)
    model.lm_head.weight[GLM_IMAGE_SIZES.codes :] = 100 * model.lm_head.weight[: GLM_IMAGE_SIZES.outputs - GLM_IMAGE_SIZES.codes]
    for sampling in (glm_image.PAPER, replace(glm_image.PAPER, temperature=0.0)):
        tokens = model.generate(torch.tensor([0, 1]), [0, 1], Method(), sampling, Memory())
        assert tokens.shape == (2, 20)
        assert int(tokens.max()) < GLM_IMAGE_SIZES.codes
    tokens = torch.arange(20)[None].repeat(2, 1)
    view = glm_image.CodeView(GLM_IMAGE_SIZES).decode(tokens)
    assert view.shape == (2, 3, 32, 32)
    assert -1 <= float(view.min()) <= float(view.max()) <= 1
    assert torch.equal(view, glm_image.CodeView(GLM_IMAGE_SIZES).decode(torch.cat((tokens[:, :4] + 7, tokens[:, 4:]), 1)))
    assert len({tuple(color) for color in view[0, :, ::8, ::8].flatten(1).T.tolist()}) == 16, "every code has a color of its own"


def test_lumina_evicts_by_lines_with_their_ends_and_decodes_codes_that_are_spelt() -> None:
    """LineAR's budgets of Table 4 are multiples of 49."""
    entry = MODELS.get("lumina-mgpt-7b-768")
    shape = entry.shape(entry.presets["paper"], 1)
    assert (shape.lines, shape.line, shape.visual) == (48, 49, 48 * 49)
    assert [Linear.parameters_for(Fraction(1, share), shape)["B"] for share in (6, 8)] == [392, 294]
    names, ids = vocabulary(), LUMINA_SIZES.ids
    table = lumina.code_table(names, ids)
    assert sorted(table.tolist()) == list(range(32)) != table.tolist()
    assert all(names[spelt(code)] - ids.first == place for place, code in enumerate(table.tolist()))
    torch.manual_seed(0)
    images = VQGAN(LUMINA_VQ).eval().requires_grad_(False)
    model = lumina.Lumina(LUMINA_SIZES, Prompts(((0, 50, 41, 40, 46, 47),), ((40, 46, 47),)))
    tokens = model.initialise(0).eval().generate(torch.tensor([0, 0]), [3, 4], Method(), Sampling(cfg_scale=3.0, top_k=20), Memory())
    codes = torch.tensor([[int(table[int(i) - ids.first]) for i in row if int(i) != ids.line_end] for row in tokens])
    decoded = LinedDecoder(LUMINA_SIZES, images, table).decode(tokens)
    assert decoded.shape == (2, 3, 16, 24)
    torch.testing.assert_close(decoded, images.decode(codes, (4, 6)))
    assert not torch.allclose(LinedDecoder(LUMINA_SIZES, images).decode(tokens), decoded)
    del names[spelt(31)]
    with pytest.raises(BadCheckpoint, match="names 31 of the 32 image codes"):
        lumina.code_table(names, ids)


def janus() -> Janus:
    model = Janus(JANUS_SIZES, PROMPTS).initialise(0).eval().requires_grad_(False)
    for block in model.blocks:
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(block.self_attn, name).weight.mul_(8)
    for weight in (model.decoder.embed_tokens.weight, model.gen_embed.weight, model.get_parameter("gen_head.vision_head.weight")):
        weight.mul_(20)
    return model


def logits_of(method: Method, sampling: Sampling, codes: torch.Tensor) -> torch.Tensor:
    """Return guided logits (batch, N, codes) of a generation along ``codes``."""
    seen: list[torch.Tensor] = []
    janus().generate(torch.tensor(LABELS), range(3), method, sampling, Memory(), forced=codes,
                     see=lambda _, guided: seen.append(guided.clone()))
    return torch.cat(seen, 1)


def test_padding_of_a_shorter_prompt_is_seen_by_no_row() -> None:
    """Neither in the training pass nor by the reference engine, which reads its whole buffer and hides padding by a mask."""
    codes = torch.randint(JANUS_SIZES.codes, (3, JANUS_SIZES.grid**2), generator=torch.Generator().manual_seed(1))
    plain = logits_of(Method(), Sampling(), codes)
    torch.testing.assert_close(janus().teacher([PROMPTS.conditional[i] for i in LABELS], codes), plain, atol=1e-4, rtol=1e-4)
    guided = Sampling(cfg_scale=5.0)
    torch.testing.assert_close(logits_of(PaddedFull(), guided, codes), logits_of(Method(), guided, codes), atol=1e-4, rtol=0)


def test_a_folder_of_janus_has_the_published_prompts_and_its_tokenizer_in_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, request, _ = written("janus", tmp_path / "janus", monkeypatch)
    model = entry.load(request).generator
    assert len({ids[:3] for ids in model.prompts.conditional}) == 1, "every prompt begins with one begin token and the user's mark"
    assert all(ids.count(ids[0]) == 1 for ids in model.prompts.conditional), "the tokenizer's own begin token came on top"
    assert len({ids[-1] for ids in (*model.prompts.conditional, *model.prompts.unconditional)}) == 1
    before, file = entry.identity(request), tmp_path / "janus" / "tokenizer.json"
    assert entry.identity(Request(weights=str(tmp_path / "janus" / "pytorch_model.bin"))) == before
    assert entry.identity(Request()) == "random:0/random:0"
    content = file.read_text()
    file.write_text(content + "\n")
    assert entry.identity(request) != before
    for text, words in ((content.replace("begin_of_image", "start_of_image"), r"no token '<begin_of_image>'"),
                        ("{", "is not a readable tokenizer")):
        file.write_text(text)
        with pytest.raises(BadCheckpoint, match=words):
            entry.load(request)


def test_folders_without_an_image_tokenizer_give_no_picture_or_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, request, _ = written("glm-image", tmp_path / "glm", monkeypatch)
    loaded = entry.load(request)
    assert loaded.generator.prompts.conditional[0] == (61, 63, 68, 66, 66, 69, 68, 67, 67, 69, 70)
    assert (loaded.random, loaded.pictures) == (False, False), "a view of the codes is not scored"
    for use in (entry.load, entry.identity):
        with pytest.raises(BadCheckpoint, match="glm-image decodes no images"):
            use(replace(request, decoder_weights=str(tmp_path / "x.pt")))
    entry, request, state = written("emu3", tmp_path / "emu3", monkeypatch)
    kept = {name: tensor.contiguous() for name, tensor in state.items() if not name.startswith("vqmodel.decoder.up_block.")}
    save_file(kept, tmp_path / "emu3" / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"tensors missing \(decoder\.up_block"):
        entry.load(request)
