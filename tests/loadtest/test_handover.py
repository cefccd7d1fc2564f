"""Two models of what follows jobs: every interleaving of the design is right, and each wrong design is found.

`handover` takes a follower to its topic, `bundles` counts the members of a bundle.
"""

from __future__ import annotations

import pytest

from loadtest import bundles, handover


@pytest.mark.long
@pytest.mark.parametrize(("model", "least"), [(handover, 100_000), (bundles, 5_000)], ids=["handover", "bundles"])
def test_every_interleaving_makes_the_follower_exactly_once(model: object, least: int) -> None:
    states, way = model.search()  # type: ignore[attr-defined]
    assert way == []
    assert states > least, "the search has looked at little"


@pytest.mark.long
@pytest.mark.parametrize("defect", handover.DEFECTS)
def test_each_wrong_hand_over_is_found(defect: str) -> None:
    _, way = handover.search(handover.DEFECTS[defect])
    assert way


@pytest.mark.parametrize("defect", bundles.DEFECTS)
def test_each_wrong_count_is_found(defect: str) -> None:
    _, way = bundles.search(bundles.DEFECTS[defect])
    assert way
