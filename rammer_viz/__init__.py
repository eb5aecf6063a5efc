"""Draw a schedule: text Gantt, SVG, a self-contained HTML page, Chrome-trace JSON; and explain it. Pure functions.

Names of operators and rKernels come from models, which are untrusted. They are escaped for each format, and stripped of
control characters.
"""

from rammer_viz.explain import Explanation, explain
from rammer_viz.gantt import text_gantt
from rammer_viz.page import html
from rammer_viz.svg import memory_svg, svg
from rammer_viz.trace import chrome_trace, superstep_trace

__all__ = ["Explanation", "chrome_trace", "explain", "html", "memory_svg", "superstep_trace", "svg", "text_gantt"]
