"""Makes the jobs of figures, in this process or on a cluster's workers, and keeps each result as it comes."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rammer_dask import connect

from benchmarks.compare.run import commit, has_commit
from benchmarks.paper import results
from benchmarks.paper.figure import Figure, Job, Point, Source, Values
from rammer import devices
from rammer.errors import RammerError

BOOK = "docs/evaluation"  # what is written there does not change what wrote it


@dataclass(frozen=True, slots=True)
class Options:
    """What to make: jobs whose key contains `parts`; `measure`: those of devices, too; `again`: also what is made.

    `since`: also what a commit made that does not have this one. `minutes`: begin none after so long.
    `workers`: processes for what is not measured; or a scheduler that has some.
    """

    parts: str = ""
    measure: bool = False
    again: bool = False
    since: str = ""
    minutes: float = float("inf")
    workers: int = 0
    scheduler: str | None = None


class Runner:
    """Makes figures one after the other. `say` prints a line, `tick` moves a progress bar: figure, job, made, all."""

    def __init__(
        self, options: Options, say: Callable[[str], None], tick: Callable[[str, str, int, int], None]
    ) -> None:
        self._options, self._say, self._tick = options, say, tick
        self._end = time.monotonic() + 60 * options.minutes
        self._head = _head()  # of when this process began: files may change meanwhile
        self.failed = 0

    def make(self, figure: Figure) -> None:
        """Make what is missing. Results are written one by one, and a failure does not stop the others."""
        known = results.load(figure)
        left = self._left(figure, known)
        self._tick(figure.name, "", 0, len(left))
        for done, (job, found) in enumerate(self._made(figure, left), 1):
            if isinstance(found, RammerError):
                self.failed += 1
                self._say(f"{figure.name}: {job.key}: {found}")
            else:
                today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
                known[job.key] = Point(found[0], today, self._head, found[1])
                results.store(figure, known)
            self._tick(figure.name, job.key, done, len(left))

    def _left(self, figure: Figure, known: dict[str, Point]) -> list[Job]:
        wanted = [job for job in figure.jobs() if self._options.parts in job.key]
        wanted = [job for job in wanted if self._options.again or job.key not in known or self._old(known[job.key])]
        measured = [job for job in wanted if job.target]
        if measured and not self._options.measure:
            self._say(f"{figure.name}: {len(measured)} parts are to be measured: --measure")
            wanted = [job for job in wanted if not job.target]
        absent = {d.name: d.reason for d in devices() if not d.available} if self._options.measure else {}
        for target in sorted({job.target for job in wanted} & absent.keys()):
            self._say(f"{figure.name}: nothing is measured on {target}: {absent[target]}")
        return [job for job in wanted if job.target not in absent]

    def _old(self, point: Point) -> bool:
        return bool(self._options.since) and not has_commit(point.commit.rstrip("+"), self._options.since)

    def _made(self, figure: Figure, jobs: Sequence[Job]) -> Iterator[tuple[Job, tuple[Source, Values] | RammerError]]:
        """Jobs with what they found, as they are ready; those that are measured come last, and alone."""
        apart = [job for job in jobs if not job.target] if self._options.workers or self._options.scheduler else []
        cluster = connect(self._options.scheduler, workers=self._options.workers) if apart else nullcontext()
        with cluster as client:
            if client is not None:
                from dask.distributed import as_completed

                futures = {client.submit(make_job, figure.name, job.key, pure=False): job for job in apart}
                for future in as_completed(futures):
                    yield futures[future], future.result()
                    if time.monotonic() > self._end:
                        return
        for job in jobs:
            if job not in apart:
                if time.monotonic() > self._end:
                    return
                yield job, _try(job)


def make_job(figure: str, key: str) -> tuple[Source, Values] | RammerError:
    """Make a job of the book by its name: what a worker is asked for."""
    from benchmarks.paper.figures import FIGURES

    return _try(next(job for job in FIGURES[figure].jobs() if job.key == key))


def _try(job: Job) -> tuple[Source, Values] | RammerError:
    try:
        return job.make()
    except RammerError as error:
        return error


def _head() -> str:
    head = commit(besides=BOOK)
    return f"{head['id'][:7]}{'+' if head['dirty'] else ''}"
