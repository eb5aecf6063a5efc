"""All figures and tables of the book, in the papers' order."""

from __future__ import annotations

from benchmarks.paper.experiments import endtoend, graphturbo, nasbench, others, selection, utilisation
from benchmarks.paper.figure import Figure

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        others.TABLE_1,
        utilisation.FIGURE_1,
        utilisation.FIGURE_2,
        others.FIGURE_4,
        *endtoend.FIGURES,
        utilisation.FIGURE_14,
        others.FIGURE_15,
        utilisation.FIGURE_16,
        selection.FIGURE,
        nasbench.FIGURE_18,
        nasbench.FIGURE,
        *endtoend.OTHER_DEVICES,
        others.FIGURE_21,
        *graphturbo.FIGURES,
    )
}
