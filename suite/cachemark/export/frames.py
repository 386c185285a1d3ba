"""Results as pandas frames: one row per case, per case and metric, or per raw value."""

from __future__ import annotations

import pandas as pd

from .records import COLUMNS, ENDED, SAMPLE_COLUMNS, WHOSE, Source, metric_records, sample_records


def frame(source: Source, run: int | None = None) -> pd.DataFrame:
    """Return a frame with the columns ``COLUMNS``, one row per case and metric.

    ``source`` is a store, its path or URL, or results; ``run`` a run number, by default the newest. ``value`` is the value in the report:
    the median of times and counts, the mean over seeds otherwise. ``low``, ``high`` and ``confidence`` are NaN without an interval. ``n``
    counts raw values, or images of image-set metrics. Speedup and savings have the kind ``derived``. A case without values has one row with
    the ``reason``; fidelity and quality of random weights are left out. Raises BadStore, and NothingMeasured for a store without runs.
    """
    records = [{**shared, **other} for shared, others in metric_records(source, run) for other in others]
    return pd.DataFrame(records, columns=list(COLUMNS)).astype({"n": "Int64", "version": "Int64", "run": "Int64"})


def case_frame(source: Source, run: int | None = None) -> pd.DataFrame:
    """Return a frame with one row per case and one column per metric, NaN where missing.

    ``attrs["units"]`` and ``attrs["better"]`` map metrics to units and directions. Arguments and errors as for :func:`frame`.
    """
    long = frame(source, run)
    about = [*WHOSE, *ENDED]
    cases = long.drop_duplicates("case")[about].set_index("case", drop=False)
    measured = long[long["metric"].notna()]
    table = cases.join(measured.pivot(index="case", columns="metric", values="value")[list(dict.fromkeys(measured["metric"]))])
    measured = measured.drop_duplicates("metric")
    table = table.reset_index(drop=True)
    table.attrs = {name: measured.set_index("metric")[column].to_dict() for name, column in (("units", "unit"), ("better", "better"))}
    return table


def samples_frame(source: Source, run: int | None = None) -> pd.DataFrame:
    """Return a frame with the columns ``SAMPLE_COLUMNS``, one row per raw value, in order.

    Nothing is omitted: ``judgement`` states why fidelity and quality of a case must not be used. Arguments and errors as for :func:`frame`.
    """
    records = [{**shared, **other} for shared, others in sample_records(source, run) for other in others]
    return pd.DataFrame(records, columns=list(SAMPLE_COLUMNS)).astype({"index": "Int64", "version": "Int64", "run": "Int64"})
