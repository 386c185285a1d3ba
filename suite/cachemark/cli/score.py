"""``cachemark score``: the quality of images that any tool has written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.formatting import in_unit, metric_value
from ..core.units import metric
from .options import FILE, echo_json, json_option, picture, say

if TYPE_CHECKING:
    from ..workflows.score import Score, Scores

SHOWN = 5  # worst pairs in the text


def with_options(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    """Parse ``clip_score,weights=models/clip`` as a name and its options."""
    parsed = []
    for text in texts:
        name, *options = text.split(",")
        pairs = dict(part.split("=", 1) for part in options if part.partition("=")[2])
        if len(pairs) != len(options):
            raise click.BadParameter(f"{text[:80]!r} is not a metric with options; write clip_score,weights=FOLDER.")
        parsed.append((name, pairs))
    return parsed


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("against", type=click.Path(path_type=Path), required=False)
@click.option("--preset", "preset_name",
              type=click.Choice(["scene", "adm", "coco", "adm768", "adm192", "adm64", "mjhq", "coco2017-full", "geneval2"]),
              help="Feature network, or protocol of a benchmark.  [default: adm for a folder or an npz file, else scene]")
@click.option("--weights", default="", help="File with the weights of the feature network.  [default: PyTorch's download cache]")
@click.option("--prompts", type=click.Path(), default="", help="Prompts of FOLDER: a txt, csv, tsv, jsonl, json or parquet file.")
@click.option("--metric", "metrics", multiple=True, callback=with_options, metavar="NAME[,OPTION=PATH]",
              help="Score each image with its prompt: clip_score, image_reward, hpsv2, geneval, dpg; repeatable.")
@click.option("--grid", type=FILE, callback=picture, help="Write the worst pairs to this PNG file: first, second, difference.")
@click.option("--unpaired", is_flag=True, help="Compare the sets alone, though some file names are in both folders.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where the networks run.")
@json_option
def score(folder: Path, against: Path | None, grid: Path | None, as_json: bool, **options: Any) -> None:
    """Score images against other images or statistics.

    FOLDER and AGAINST are folders or npz files of images (arr_0); AGAINST may also be an npz file of statistics (mu, sigma) or, for the
    preset scene, a safetensors file. Without AGAINST the bundled scenes are used. Images with the same name in two folders are pairs:
    PSNR, SSIM, LPIPS. The sets are compared by FID, sFID, KID, precision and recall, and FOLDER has an Inception score. Features are kept
    in the user's cache folder, so scoring the same images again is fast.
    """
    from ..workflows.score_protocols import score as measure

    scores = measure(folder, against or "", grid=grid or "", **options)
    if as_json:
        echo_json({**vars(scores), "pairs": [{"name": pair.name, **pair.values} for pair in scores.pairs]})
        return
    _print(scores)
    if grid is not None:
        say(f"Written: {grid}", err=True)


def _print(scores: Scores) -> None:
    width, height = scores.size
    say(f"{scores.images} images of {width}×{height} against {scores.against}{f', preset {scores.preset}' if scores.preset else ''}")
    for name, value in scores.values.items():
        say(f"{name:<22}{in_unit(value.value, value.unit):>10}  {_ends(value):<22}{value.better} is better"
            f"{f'; {value.note}' if value.note else ''}")
    for note in scores.notes:
        say(f"Note: {note}")
    names = dict[str, list[str]]()
    for name, reason in scores.absent.items():
        names.setdefault(reason, []).append(name)
    for reason, absent in names.items():
        say(f"{', '.join(absent)}: {reason}")
    if scores.pairs:
        worst = ", ".join(f"{pair.name} {metric_value(pair.values[scores.worst_by], scores.worst_by)}" for pair in scores.pairs[:SHOWN])
        say(f"Worst pairs by {metric(scores.worst_by).title}: {worst}")


def _ends(value: Score) -> str:
    if value.low is None or value.high is None:
        return "no interval"
    return f"{in_unit(value.low, value.unit)} to {in_unit(value.high, value.unit)}"
