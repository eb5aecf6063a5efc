"""Run saved programs: load, call, bind, keep state, report. Known as: a runtime.

It imports no passes, kernels, frontend, scheduler or compiler: a machine that only runs programs needs none of them.
"""

from rammer.runtime.load import devices, load, save_together
from rammer.runtime.program import Bound, Program
from rammer.runtime.report import Report
from rammer.runtime.state import Stream
from rammer.runtime.usage import Usage

__all__ = ["Bound", "Program", "Report", "Stream", "Usage", "devices", "load", "save_together"]
