"""The parts of the documentation site: pages of commands, links that leave docs/, flowcharts, and what a page would load."""

from __future__ import annotations

import click
import pytest

from tools.site import commands, diagram, hosts, links


@click.group()
def toy() -> None:
    """A command line with <angles>, see `toy make`."""


@toy.command()
@click.argument("what")
@click.option("--size", type=click.Choice(["a", "b_c"]), default="a", show_default=True, help="How *large* | wide.")
def make(what: str, size: str) -> None:
    """Make it.

    \b
    first
    second
    """


@toy.group()
def box() -> None:
    """Boxes."""


@box.command()
def shut() -> None:
    """Shut one."""


def test_every_command_has_a_page_and_every_one_below_it_a_section() -> None:
    made = commands.pages(toy, "toy")
    assert list(made) == ["index.md", "box.md", "make.md"]
    assert "[`toy make`](make.md) | Make it." in made["index.md"]
    assert "A command line with &lt;angles&gt;, see <code>toy make</code>." in made["index.md"]
    assert [line for line in made["box.md"].splitlines() if line.startswith("#")] == ["# toy box", "## toy box shut"]
    assert "```text\ntoy box shut\n```" in made["box.md"].replace(" [OPTIONS]", "")


def test_options_are_shown_with_their_choices_and_defaults() -> None:
    page = commands.pages(toy, "toy")["make.md"]
    (row,) = (line for line in page.splitlines() if "--size" in line)
    assert row == ('| <code><span class="flag">--size</span> &#91;a&#124;b&#95;c&#93;</code> '
                   "| How &#42;large&#42; &#124; wide. &#91;default: a&#93; |")
    assert "--help" not in page
    assert "```text\nfirst\nsecond\n```" in page


# ------------------------------------------------------------------------------------------------ links

def test_links_that_leave_docs_lead_to_the_copy_and_others_stay() -> None:
    text = ("[a](../../ci/n.sh) [b](gate.md#how) [c](../errors.md) [d](#x) [e](https://x.org/a.md) ![f](../../reports/d.html#t)\n"
            "```python\nrun[0](../../ci/n.sh)\n```\n")
    assert links.rewritten(text, "docs/how-to/nightly.md") == text.replace("(../../ci/n.sh) [b", "(../repository/ci/n.sh.md) [b").replace(
        "(../../reports/d.html#t", "(../repository/reports/d.html#t")
    assert links.rewritten("[a](docs/guide/x.md#y) [b](ci/n.sh)", "CONTRIBUTING.md") == "[a](../guide/x.md#y) [b](ci/n.sh.md)"


# ------------------------------------------------------------------------------------------------ other hosts

@pytest.mark.parametrize("text", [
    '<script src="https://x.org/a.js"></script>', '<img src="//x.org/a.png">', '<link rel="stylesheet" href="http://x.org/a.css">',
    '<p style="background: url(https://x.org/a.png)">', "<style>@import 'https://x.org/a.css'</style>", '<iframe src="HTTPS://x.org"></iframe>',
])
def test_what_a_page_loads_from_another_host_is_found(text: str) -> None:
    assert len(hosts.loads(text)) == 1


# ------------------------------------------------------------------------------------------------ flowcharts

def test_a_flowchart_is_drawn_with_every_box_below_what_leads_to_it() -> None:
    arrows = diagram.edges("flowchart TD\n  a --> b & c\n  b --> d\n  c --> d --> e\n  a --> e\n")
    assert arrows == [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e"), ("a", "e")]
    assert diagram.rows(arrows) == [["a"], ["b", "c"], ["d"], ["e"]]
    drawn = diagram.svg(arrows)
    assert (drawn.count("<rect "), drawn.count('class="arrow"')) == (5, 6)
