"""Lists of nodes as schedulers write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.jobs.hostlist import HostlistError, expand


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("c1", ("c1",)),
        ("c1,c4,c2", ("c1", "c4", "c2")),
        ("c[1-3,7],d04", ("c1", "c2", "c3", "c7", "d04")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]-ib", ("r1-ib", "r2-ib")),
        ("c1,c1", ("c1",)),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("r[1-2]n[09-10]-ib,s1", ("r1n09-ib", "r1n10-ib", "r2n09-ib", "r2n10-ib", "s1")),
    ],
)
def test_lists_are_expanded_in_order(text: str, nodes: tuple[str, ...]) -> None:
    assert expand(text) == nodes


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "c1,",
        "c[1-",
        "c[3-1]",
        "c[1-999999999]",
        "c1 c2",
        "c[a]",
        "c[]",
        "[[1]]",
        "[1-9][1-9][1-9][1-9][1-9][1-9]",
        "c" + 9 * "[1,1,1,1,1,1,1,1]",
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(HostlistError) as caught:
        expand(text)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="c1[]-,0 \n", max_size=30))
def test_no_text_ends_in_anything_but_names_or_a_sentence(text: str) -> None:
    try:
        names = expand(text)
    except HostlistError:
        return
    assert names and all(names) and len(set(names)) == len(names)
