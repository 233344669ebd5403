"""``lookahead``: list schedules made with other costs in mind, and the best of them kept.

List scheduling takes what is there, and so starts a weight gradient just before the forward or
backward arrives that another rank hangs on. Two things mend that. Forwards and backwards are
ordered first, as if weight gradients took no time, and weight gradients then fill the holes. And
that order is made several times, as if backwards took more or less than they do, as if messages
were free, with ties decided the other way: what suits a pipeline best depends on its ramps, and to
try is cheaper than to know. (The zero-bubble authors, 2401.10241, try eight settings of a heuristic
of their own and keep the best.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, product

from schedc.solve.greedy import Preference, list_schedule
from schedc.solve.holes import fill_holes
from schedc.solve.problem import BACKWARD, FORWARD, Lists, Problem
from schedc.solve.timing import Score, score

RATIOS = (10, 8, 6, 13, 11, 16, 9, 12, 14, 7, 15, 5, 17, 18, 19, 20)
"""Tenths of their time that backwards are taken to need; what helps most often comes first."""

THRESHOLDS = (6, 2, 10)
"""Tenths of a weight gradient that a hole must have to be filled with one."""

WORK = 1_000_000
"""Operations to be listed in rehearsals, of all settings together."""

FINALISTS = 3
"""Settings that are tried on all microbatches where rehearsals had fewer."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to make lists.

    ``ratio`` (tenths) and ``latency`` are what backwards and messages are taken to need;
    ``ratio`` None makes one list of all operations with their own costs. ``threshold`` is that of
    :func:`schedc.solve.holes.fill_holes`, None to leave weight gradients where they are.
    """

    preference: Preference
    ratio: int | None
    latency: int
    threshold: int | None


def look_ahead(problem: Problem, preference: Preference) -> Lists | None:
    """The best lists of all settings; None where each of them is stuck for want of memory.

    Where there are many microbatches, settings are chosen on fewer of them, so that the time grows
    with the operations, not with operations times settings.
    """
    tried = list(_settings(problem, preference))
    rehearsal = _shortened(problem)
    count = max(FINALISTS, WORK // len(rehearsal))
    ranked = _best(rehearsal, islice(tried, count))
    if rehearsal is problem:
        return ranked[0][1] if ranked else None
    final = _best(problem, [setting for setting, _ in ranked[:FINALISTS]])
    if not final:  # A rehearsal says nothing of memory that fills up later.
        final = _best(problem, tried)
    return final[0][1] if final else None


def _shortened(problem: Problem) -> Problem:
    """The problem with as many microbatches as it takes to see its ramps and its steady state."""
    microbatches = min(problem.microbatches, 3 * problem.ranks + 2)
    if microbatches == problem.microbatches or len(problem) * 30 <= WORK:
        return problem
    return replace(problem, microbatches=microbatches)


def _settings(problem: Problem, preference: Preference) -> Iterator[Setting]:
    """All settings, those that help most often first; the policy as it is written before all."""
    thresholds = THRESHOLDS if problem.split else (None,)
    preferences = list(_preferences(problem, preference))
    latencies = sorted({0, problem.latency})
    yield Setting(preference, None, problem.latency, None)
    for ratio, latency in product(RATIOS, latencies):
        for each, threshold in product(preferences, thresholds):
            yield Setting(each, ratio, latency, threshold)
    for latency in sorted({0, problem.latency, 2 * problem.latency}):
        for each, threshold in product(preferences, (None, *thresholds)):
            yield Setting(each, None, latency, threshold)


def _preferences(problem: Problem, preference: Preference) -> Iterator[Preference]:
    """The preference as written, and with forwards and backwards or the tie exchanged."""
    swap = {FORWARD: BACKWARD, BACKWARD: FORWARD}
    swapped = tuple(swap.get(kind, kind) for kind in preference.kinds)
    forward, backward, weight = preference.ties
    other = replace(backward, stage_first=not backward.stage_first)
    several = any(len(stages) > 1 for stages in problem.stages_of)
    for kinds, tie in product((preference.kinds, swapped), (backward, other)):
        if tie is backward or several:
            yield replace(preference, kinds=kinds, ties=(forward, tie, weight))


def _best(problem: Problem, settings: Iterable[Setting]) -> list[tuple[Setting, Lists]]:
    """The settings that make different lists, the best first."""
    skeletons: dict[tuple[Preference, int | None, int], Lists | None] = {}
    seen: set[tuple[int, ...]] = set()
    found: list[tuple[Score, Setting, Lists]] = []
    for setting in settings:
        key = (setting.preference, setting.ratio, setting.latency)
        if key not in skeletons:
            skeletons[key] = _skeleton(problem, setting)
        lists = _finished(problem, skeletons[key], setting)
        if lists is None:
            continue
        digest = tuple(hash(tuple(line)) for line in lists)
        if digest in seen:
            continue
        seen.add(digest)
        value = score(problem, lists)
        if value is not None:
            found.append((value, setting, lists))
    found.sort(key=lambda entry: entry[0])
    return [(setting, lists) for _, setting, lists in found]


def _skeleton(problem: Problem, setting: Setting) -> Lists | None:
    if setting.ratio is None:
        planned = replace(problem, latency=setting.latency)
    else:
        planned = problem.without_weights(setting.ratio, setting.latency)
    listing = list_schedule(planned, setting.preference)
    return listing.lists if listing.complete else None


def _finished(problem: Problem, skeleton: Lists | None, setting: Setting) -> Lists | None:
    """All operations in order, from a skeleton that may lack weight gradients."""
    if skeleton is None or setting.threshold is None:
        return skeleton
    if setting.ratio is None:
        weights = 2 * problem.stages * problem.microbatches
        skeleton = [[operation for operation in line if operation < weights] for line in skeleton]
    return fill_holes(problem, skeleton, setting.threshold)
