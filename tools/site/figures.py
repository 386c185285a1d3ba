"""Figures of docs/results.md: FID against bytes or FLOPs, drawn from stored values when the site is built."""

from __future__ import annotations

import altair as alt
import pandas as pd
import vl_convert

from ..pages import results

COST = {"kv_allocated": "allocated bytes, relative to the full cache", "kv_logical": "live bytes, relative to the full cache",
        "flops": "FLOPs, relative to the full model"}
INK = "currentColor"  # of the theme
TITLE = "FID, logarithmic (lower is better)"
SIZE = 300


def drawn(name: str) -> str:
    """Return the methods of a stored plan as SVG: cost to the right, FID upwards, one chart per model."""
    values = results.stored(name)
    cost = next(column for figures in results.SECTIONS[name].tables for column in figures.columns if column in COST)
    rows = pd.DataFrame([_point(row, cost) for row in values["rows"]
                         if row["role"] not in results.REFERENCES and {cost, "fid"} <= row.get("figures", {}).keys()])
    charts = (_chart(rows[rows["model"] == model], model, COST[cost]) for model in values["asked"])
    drawings = "".join(vl_convert.vegalite_to_svg(chart.to_dict()) for chart in charts)
    return f"<figure>{drawings}<figcaption>FID against {COST[cost]}. Vertical lines are 95 % intervals.</figcaption></figure>"


def _point(row: results.Row, cost: str) -> dict[str, object]:
    """Return a method's place in the chart; an FID without an interval has its own value as both ends."""
    fid, *ends = row["figures"]["fid"]
    low, high = ends or (fid, fid)
    return {"model": row["model"], "method": row["method"], "cost": row["figures"][cost][0], "fid": fid, "low": low, "high": high}


def _chart(rows: pd.DataFrame, model: str, cost: str) -> alt.LayerChart:
    logarithmic = alt.Scale(type="log", nice=False, padding=8)
    color = alt.Color("method:N", sort=None, title="method")
    base = alt.Chart(rows).encode(x=alt.X("cost:Q", title=cost, scale=alt.Scale(zero=False, padding=8)))
    intervals = base.mark_rule(color=INK, opacity=0.5).encode(y=alt.Y("low:Q", title=TITLE, scale=logarithmic), y2="high:Q")
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        y=alt.Y("fid:Q", title=TITLE, scale=logarithmic), color=color, shape=alt.Shape("method:N", sort=None, title="method"))
    return alt.layer(intervals, points).properties(width=SIZE, height=SIZE, title=model).configure(
        background="transparent", view=alt.ViewConfig(stroke=None), title=alt.TitleConfig(color=INK),
        axis=alt.AxisConfig(labelColor=INK, titleColor=INK, tickColor=INK, domainColor=INK, gridOpacity=0.3),
        legend=alt.LegendConfig(labelColor=INK, titleColor=INK))
