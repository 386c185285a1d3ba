"""Every kind of input that there is, read from the package itself: a new one has no row yet, and fails a test until it has one.

Kinds are parameters of the command line, fields of a plan, files that another program or a person wrote, and the fields of those that a
person edits.
"""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

import cachemark
from cachemark.cli import main
from cachemark.gate.anchors import Anchor
from cachemark.gate.incidents import PATTERNS, Incident
from cachemark.plans.schema import Plan

PACKAGE = Path(cachemark.__file__).parent
PARSERS = ("json.loads", "json.load", "tomllib.loads", "tomllib.load", "csv.reader", "csv.DictReader", "yaml.safe_load", "pickle.loads",
           "torch.load", "safe_open", "np.load")

OTHER = ("column", "plug-in", "secret")  # first words of kinds that are not read from the package but attacked all the same
READERS = {  # each function that takes a file or text apart, and the kind of input that this is; empty: only this package or asv writes it
    "core/edited.py:json": "baseline file", "core/files.py:read_json": "index of weights", "core/prompt_lists.py:_rows": "prompts file",
    "cli/test_method.py:knob": "--knob",
    "core/publications.py:publications": "",
    "export/asv.py:_known": "", "gate/anchors.py:embedded": "",
    "gate/anchors.py:shipped": "", "gate/incidents.py:load_owners": "owners",
    "machine/rates.py:_elsewhere": "", "metrics/compute/adm.py:statistics": "reference file",
    "metrics/compute/detector.py:classes": "weights file",
    "metrics/compute/preference.py:_hpsv2": "weights file", "metrics/compute/extractor.py:tensors": "weights file",
    "metrics/compute/image_features.py:_unpacked": "reference file", "models/checkpoints.py:_safetensors": "weights file",
    "models/checkpoints.py:_unpickle": "weights file",
    "models/checkpoints.py:remarks": "weights file", "models/conversion.py:_same": "",
    "models/tiny/stored.py:_build": "", "core/calibrations.py:packaged": "",
    "plans/toml_text.py:toml_file": "plan file", "report/page/site.py:kept": "site stamps",
    "analysis/papers.py:published": "", "roofline/kv_bytes.py:published": "", "store/ingest.py:_parse": "benchmark file",
    "store/places.py:_noted": "", "store/schema.py:process_result_value": "column of JSON",
    "tools/cards/collected.py:_log": "", "tools/cards/collected.py:_read": "", "tools/train/loops.py:_restore": "",
    "tools/train/loops.py:_write_weights": "", "trial/child/main.py:main": "", "trial/identity.py:identify": "",
    "trial/frames.py:_object": "", "plans/attempt.py:heard": "", "workflows/proving_things.py:main": "",
}


# -- the command line ---------------------------------------------------------------------------------------------------
def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def of_command_line() -> set[str]:
    """Each option and argument that takes a value: ``--run`` where all commands mean the same by it, else ``compare --samples``."""
    uses: dict[str, dict[str, str]] = {}
    for command, found in commands():
        for parameter in found.params:
            if not isinstance(parameter, click.Option) or not (parameter.is_flag or parameter.count):
                uses.setdefault(_name(parameter), {}).setdefault(_meaning(parameter), command)
    return {name if len(meant) == 1 else f"{command} {name}" for name, meant in uses.items() for command in meant.values()}


def _name(parameter: click.Parameter) -> str:
    return parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name


def _meaning(parameter: click.Parameter) -> str:
    """What is done with a value, as far as click knows."""
    callback = getattr(parameter.callback, "__qualname__", "")
    return f"{parameter.type.to_info_dict()} {callback} {parameter.nargs} {parameter.name if isinstance(parameter, click.Argument) else ''}"


# -- plans ----------------------------------------------------------------------------------------------------------------
def of_plans(table: type[BaseModel] = Plan, path: str = "plan ") -> set[str]:
    """Each field of a plan: ``plan timing.repeats``."""
    found: set[str] = set()
    for name, held in table.model_fields.items():
        found.add(path + name)
        for inner in _tables(held.annotation):
            found |= of_plans(inner, f"{path}{name}.")
    return found


def _tables(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {table for part in typing.get_args(annotation) for table in _tables(part)}


# -- files ----------------------------------------------------------------------------------------------------------------
def readers() -> set[str]:
    """Every function of the package that takes JSON, TOML or the like apart, as ``file:function``."""
    found = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        tree = ast.walk(ast.parse(text)) if any(parser in text for parser in PARSERS) else ()
        for function in (node for node in tree if isinstance(node, ast.FunctionDef)):
            calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            if calls & set(PARSERS):
                found.add(f"{file.relative_to(PACKAGE).as_posix()}:{function.name}")
    return found


def of_files() -> set[str]:
    """Each file that somebody else writes, and each field of those that a person edits."""
    edited = {"register": [held.name for held in fields(Incident)], "owners": ["name", *PATTERNS],
              "anchor file": [held.name for held in fields(Anchor)]}
    fields_of = {"anchor file", "calibration file", *edited} | {f"{kind} {name}" for kind, names in edited.items() for name in names}
    return {kind for kind in READERS.values() if kind and not kind.startswith(OTHER)} | fields_of


def every() -> set[str]:
    """All kinds."""
    return of_command_line() | of_plans() | of_files()
