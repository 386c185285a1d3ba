"""The picture of packages in ``docs/architecture.md``, drawn from their imports."""

from __future__ import annotations

import re

import grimp

PICTURE = re.compile(r"(<!-- imports -->\n).*?(<!-- end of imports -->)", re.S)


def with_picture(page: str) -> str:
    """Return the page with the picture between the marks drawn again."""
    return PICTURE.sub(lambda marks: f"{marks[1]}\n```mermaid\n{picture()}\n```\n\n{marks[2]}", page)


def picture() -> str:
    """Return a flowchart of the packages: an arrow for each import that no path of other arrows contains."""
    imports = package_imports()
    below: dict[str, set[str]] = {}

    def all_below(package: str) -> set[str]:
        if package not in below:
            below[package] = imports[package] | {name for other in imports[package] for name in all_below(other)}
        return below[package]

    rows = {package: sorted(other for other in others if not any(other in all_below(between) for between in others - {other}))
            for package, others in sorted(imports.items())}
    return "\n".join(["flowchart TD", *(f"  {package} --> {' & '.join(others)}" for package, others in rows.items() if others)])


def package_imports() -> dict[str, set[str]]:
    """Return which packages of cachemark each package imports at run time."""
    graph = grimp.build_graph("cachemark", exclude_type_checking_imports=True, cache_dir=None)
    packages = {child for child in graph.find_children("cachemark") if graph.find_children(child)}
    imports: dict[str, set[str]] = {package.rpartition(".")[2]: set() for package in packages}
    for module in graph.modules:
        parts = module.split(".")
        if len(parts) > 1 and parts[1] in imports:
            imported = {name.split(".")[1] for name in graph.find_modules_directly_imported_by(module) if name.count(".")}
            imports[parts[1]] |= (imported & imports.keys()) - {parts[1]}
    return imports
