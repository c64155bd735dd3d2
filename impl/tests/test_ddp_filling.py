"""Gradients in a bucket's flat tensor: however they come there, each lies bit by bit where its view is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.comm.flat import dense_views
from impl.ddp.buckets import Filling

SHAPES = st.sampled_from([(), (3,), (5,), (2, 2), (3, 2), (0,), (0, 2), (1, 2, 2), (3000,)])


def laid_out(shapes, strange=()):
    """A flat tensor behind another's elements, and its parts, the ``strange`` ones transposed."""
    likes = [torch.zeros(shape) for shape in shapes]
    likes = [like.t() if place in strange and like.dim() == 2 else like for place, like in enumerate(likes)]
    flat = torch.full((7 + sum(like.numel() for like in likes),), -1.0)[7:]
    return flat, dense_views(flat, likes)


def unlike(views):
    """Values of which no two are equal."""
    numbers = torch.arange(1.0, 1.0 + sum(view.numel() for view in views))
    parts = numbers.split([view.numel() for view in views])
    return [part.view(view.shape) for part, view in zip(parts, views, strict=True)]


@settings(deadline=None)  # a loaded machine takes its time
@given(
    st.lists(st.tuples(SHAPES, st.integers(1, 20)), min_size=1, max_size=6),
    st.sets(st.integers(0, 40)),
    st.sampled_from([1.0, 0.5]),
)
def test_every_part_is_its_source_times_the_factor(runs, strange, factor):
    flat, views = laid_out([shape for shape, times in runs for _ in range(times)], strange)
    sources = unlike(views)
    Filling(flat, views).fill(sources, factor)
    assert all(torch.equal(view, source * factor) for view, source in zip(views, sources, strict=True))


def expanded(one):
    return one[:1].expand(4)


def double(one):
    return one.double()


def in_steps(one):
    return torch.stack([one, one], dim=1)[:, 0]


@pytest.mark.parametrize("made", [expanded, double, in_steps])
def test_sources_of_any_kind(made):
    flat, views = laid_out([(4,)] * 10)
    sources = unlike(views)
    sources[3] = made(sources[3])
    expected = [source.float() for source in sources]
    Filling(flat, views).fill(sources, 1.0)
    assert all(torch.equal(view, one) for view, one in zip(views, expected, strict=True))


@pytest.mark.parametrize("numel", [4, 5000])
def test_the_factor_is_applied_in_the_dtype_of_the_flat_tensor(numel):
    flat, views = laid_out([(numel,)])
    Filling(flat, views).fill([torch.full((numel,), 3 * 2.0**-24, dtype=torch.float16)], 0.5)
    assert flat.unique().tolist() == [1.5 * 2.0**-24]


def test_a_source_that_is_its_own_place_already():
    flat, views = laid_out([(4,)] * 10)
    sources = unlike(views)
    views[3].copy_(sources[3])
    expected = [source.clone() for source in sources]
    sources[3] = views[3].detach()  # what is left of ``p.grad = p.grad.detach()``
    Filling(flat, views).fill(sources, 0.5)
    assert all(torch.equal(view, one / 2) for view, one in zip(views, expected, strict=True))
