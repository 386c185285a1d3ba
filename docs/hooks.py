"""Hooks of mkdocs: what of the site is made when it is built. `tools.site` has the parts."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from cachemark.cli import main
from tools.site import commands, diagram, generated, hosts, links

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>(~?)([\w.]+)</code>")
COMMANDS = {f"cli/{name}": text for name, text in commands.pages(main).items()}
ORIGIN: dict[str, str] = {}  # the file of the repository behind a page of the site


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give each command its place in the navigation, and draw flowcharts here instead of in the browser."""
    _listing(config.nav)[:] = list(COMMANDS)
    fences = [{"name": "mermaid", "class": "diagram", "format": diagram.fence}]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": fences}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of commands, other generated pages, and the files outside docs/ that a page links to."""
    for name, text in (COMMANDS | {name: page() for name, page in generated.PAGES.items()}).items():
        files.append(File.generated(config, name, content=text))
    root = Path(config.docs_dir).parent
    ORIGIN.update({file.src_uri: f"{links.DOCS}/{file.src_uri}" for file in files.documentation_pages() if file.src_dir})
    for path, text in links.brought(root, list(ORIGIN.values())).items():
        name = links.place(path)
        source = {"abs_src_path": str(root / path)} if text is None else {"content": text}
        files.append(File.generated(config, name, inclusion=InclusionLevel.NOT_IN_NAV, **source))
        if path.endswith(".md"):
            ORIGIN[name] = path
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fill in generated parts, and let links that leave docs/ lead to the copy on the site."""
    markdown, origin = generated.filled(page.file.src_uri, markdown), ORIGIN.get(page.file.src_uri)
    return links.rewritten(markdown, origin) if origin else markdown


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Show the names that docstrings refer to as code, without the markup around them."""
    return ROLE.sub(lambda found: f"<code>{found[2].rpartition('.')[2] if found[1] else found[2].lstrip('.')}</code>", html)


def on_post_page(output: str, **_: object) -> str:
    """Give the dialogue of the search a name for those who hear the page; the theme gives it none."""
    return output.replace('data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"')


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would load anything from another host."""
    foreign = list(hosts.loads_of(Path(config.site_dir)))
    if foreign:
        raise PluginError("The site would load these from another host:\n" + "\n".join(foreign))


def _listing(nav: object) -> list[object]:
    """The list below "Command line" of the navigation."""
    for entry in nav if isinstance(nav, list) else ():
        if isinstance(entry, dict):
            for title, below in entry.items():
                listing = below if title == "Command line" else _listing(below)
                if listing:
                    return listing
    return []
