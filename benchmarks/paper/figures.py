"""All figures and tables of the book, in the paper's order."""

from __future__ import annotations

from benchmarks.paper import nasbench, selection
from benchmarks.paper.figure import Figure

FIGURES: dict[str, Figure] = {figure.name: figure for figure in (selection.FIGURE, nasbench.FIGURE_18, nasbench.FIGURE)}
