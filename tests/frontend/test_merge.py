"""Merged graphs: random models and random links compute what the models compute one after the other."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from rammer_testing.generate import random_graph, random_inputs

from rammer.errors import InputError
from rammer.frontend.merge import merge
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array
from rammer.ir.verify import verify_graph


def links_of(graphs: dict[str, Graph], random: Random, *, back: bool = False) -> dict[str, str]:
    """Return random links of equal types, from earlier models to later ones; with `back`, from any to any."""
    order = list(graphs)
    links = {}
    for n, taker in enumerate(order):
        for t in graphs[taker].inputs:
            givers = [
                f"{giver}.{u}"
                for giver in (order if back else order[:n])
                for u in graphs[giver].outputs
                if graphs[giver].types[u] == graphs[taker].types[t]
            ]
            if givers and random.random() < 0.7:
                links[f"{taker}.{t}"] = random.choice(givers)
    return links


@pytest.mark.parametrize("seed", range(60))
def test_random_models_with_random_links(seed: int) -> None:
    random = Random(seed)
    graphs = {f"m{n}": random_graph(seed * 10 + n, 5, placed=False) for n in range(2 + seed % 3)}
    links = links_of(graphs, random)
    shuffled = dict(random.sample([*graphs.items()], len(graphs)))  # models need not be in the order of their data
    whole = merge(shuffled, links)
    verify_graph(whole, whole)
    assert {*whole.inputs} == {f"{m}.{t}" for m, g in graphs.items() for t in g.inputs} - links.keys()
    assert {*whole.outputs} == {f"{m}.{t}" for m, g in graphs.items() for t in g.outputs} - {*links.values()}
    given = random_inputs(whole, seed)
    values: dict[str, Array] = dict(given)
    for model, graph in graphs.items():
        own = {t: values[links.get(f"{model}.{t}", f"{model}.{t}")] for t in graph.inputs}
        values |= {f"{model}.{t}": value for t, value in evaluate_graph(graph, own).items()}
    for name, found in evaluate_graph(whole, given).items():
        np.testing.assert_array_equal(found, values[name])


def test_random_links_in_cycles_are_refused_and_named() -> None:
    """Links from any model to any other: each set is either merged into a graph that is right, or refused."""
    refused = 0
    for seed in range(40):
        graphs = {f"m{n}": random_graph(seed * 10 + n, 4, placed=False) for n in range(3)}
        links = links_of(graphs, Random(seed), back=True)
        try:
            whole = merge(graphs, links)
            verify_graph(whole, whole)
        except InputError as error:
            assert "form a cycle" in str(error) and all(f"{a}={b}" in str(error) for a, b in links.items())
            refused += 1
    assert 0 < refused < 40


def test_graphs_after_passes_are_refused() -> None:
    placed = next(g for g in (random_graph(seed) for seed in range(20)) if g.views)
    with pytest.raises(InputError, match="the model 'b' has passed the optimizer"):
        merge({"a": random_graph(0, placed=False), "b": placed})
