"""Inject bugs into rammer itself, and report what stops each: a rule, a trial, one run of the program, or nothing.

    python -m rammer.testing.mutate

Known as: mutation testing. A bug changes a function of the compiler, in a child process; networks and devices are the
user's. docs/semantics.md has the table.
"""

from rammer_testing.mutate.bug import Bug
from rammer_testing.mutate.graphs import GRAPH_BUGS
from rammer_testing.mutate.images import IMAGE_BUGS
from rammer_testing.mutate.kernels import KERNEL_BUGS

BUGS: tuple[Bug, ...] = (*GRAPH_BUGS, *KERNEL_BUGS, *IMAGE_BUGS)

__all__ = ["BUGS", "Bug"]
