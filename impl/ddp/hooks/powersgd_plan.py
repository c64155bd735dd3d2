"""Which gradients of a bucket PowerSGD compresses, where the pieces lie in its two messages, and the linear algebra.

Nothing here communicates. The names of shapes: ``b`` matrices of equal shape, ``n`` rows, ``m`` columns, ``r`` the rank
of the approximation.
"""

import functools
import math
from dataclasses import dataclass

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class MatrixGroup:
    """Gradients of equal matrix shape that are compressed together."""

    members: tuple[int, ...]  # positions in the bucket
    rows: int
    columns: int
    rank: int

    @property
    def p_shape(self) -> Shape:
        return (len(self.members), self.rows, self.rank)

    @property
    def q_shape(self) -> Shape:
        return (len(self.members), self.columns, self.rank)


@dataclass(frozen=True)
class CompressionPlan:
    """How one bucket is compressed: groups of matrices, and the rest, which is averaged as it is."""

    groups: tuple[MatrixGroup, ...]
    plain: tuple[int, ...]  # positions in the bucket
    plain_numel: int
    matrix_numel: int

    def __post_init__(self) -> None:
        positions = sorted([*self.plain, *(member for group in self.groups for member in group.members)])
        if positions != list(range(len(positions))):
            raise ValueError(f"a compression plan covers every gradient exactly once, got positions {positions}")

    @property
    def positions(self) -> int:
        """How many gradients it covers."""
        return len(self.plain) + sum(len(group.members) for group in self.groups)

    @property
    def p_numel(self) -> int:
        return sum(math.prod(group.p_shape) for group in self.groups)

    @property
    def q_numel(self) -> int:
        return sum(math.prod(group.q_shape) for group in self.groups)

    @property
    def numel_before(self) -> int:
        return self.plain_numel + self.matrix_numel

    @property
    def numel_after(self) -> int:
        return self.plain_numel + self.p_numel + self.q_numel


@functools.lru_cache(maxsize=1024)
def plan_layers(shapes: tuple[Shape, ...], rank: int, min_rate: float, batch_same_shape: bool) -> CompressionPlan:
    """The plan for a bucket of gradients of these shapes, each seen as a matrix of its first dimension by the rest.

    A matrix is compressed if that makes it smaller by more than ``min_rate`` (COMM-026: vectors never are). Matrices of
    one shape stand together, whether or not they are batched: the order in which torch draws their factors.
    """
    plain: list[int] = []
    alike: dict[tuple[int, int], list[int]] = {}
    for position, shape in enumerate(shapes):
        rows, columns = _as_matrix(shape)
        if len(shape) > 1 and (rows + columns) * min(rank, rows, columns) * min_rate < rows * columns:
            alike.setdefault((rows, columns), []).append(position)
        else:
            plain.append(position)
    groups: list[MatrixGroup] = []
    for (rows, columns), members in alike.items():
        together = [tuple(members)] if batch_same_shape else [(member,) for member in members]
        groups.extend(MatrixGroup(each, rows, columns, min(rank, rows, columns)) for each in together)
    plain_numel = sum(math.prod(shapes[position]) for position in plain)
    matrix_numel = sum(len(group.members) * group.rows * group.columns for group in groups)
    return CompressionPlan(tuple(groups), tuple(plain), plain_numel, matrix_numel)


def plan_square(numel: int, rank: int) -> CompressionPlan:
    """The plan that sees a whole bucket of ``numel`` elements, filled up with zeros, as one square matrix."""
    if numel == 0:
        return CompressionPlan((), (0,), 0, 0)
    side = math.isqrt(numel - 1) + 1
    return CompressionPlan((MatrixGroup((0,), side, side, min(rank, side)),), (), 0, numel)


def _as_matrix(shape: Shape) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def split(flat: torch.Tensor, shapes: list[Shape]) -> list[torch.Tensor]:
    """Consecutive views of these shapes into a flat tensor (which may be longer)."""
    views, offset = [], 0
    for shape in shapes:
        numel = math.prod(shape)
        views.append(flat[offset : offset + numel].view(shape))
        offset += numel
    return views


def orthogonalize(matrices: torch.Tensor, epsilon: float = 0.0) -> None:
    """Make the columns of each matrix [b, n, r] orthonormal, in place; ``epsilon`` is added to norms that divide them.

    A column that depends on those before it carries no information: it becomes another one that is orthogonal to them,
    the same on all ranks. Were it not, a projection on the columns would count twice what they share.
    """
    rank = matrices.shape[2]
    work = matrices if matrices.dtype in (torch.float32, torch.float64) else matrices.float()
    if rank > 2 and epsilon == 0:
        matrices.copy_(torch.linalg.qr(work).Q)
        return
    _gram_schmidt(work, epsilon)
    if work is not matrices:
        matrices.copy_(work)


def _gram_schmidt(matrices: torch.Tensor, epsilon: float) -> None:
    rounding = 10 * torch.finfo(matrices.dtype).eps * math.sqrt(matrices.shape[1])
    for index in range(matrices.shape[2]):
        done, column = matrices[:, :, :index], matrices[:, :, index]
        rest = _orthogonal_part(column, done)
        norm = _norm(rest)
        axis = torch.zeros_like(column).scatter_(1, done.square().sum(2).argmin(1, keepdim=True), 1)
        other = _orthogonal_part(axis, done)
        is_dependent = norm <= rounding * _norm(column)
        column.copy_(torch.where(is_dependent, other / _norm(other), rest / (norm + epsilon)))


def _norm(columns: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(columns, dim=1, keepdim=True)  # type: ignore[no-any-return]


def _orthogonal_part(columns: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
    """These columns [b, n] less their projections on the orthonormal ones of ``done`` [b, n, r]."""
    for _ in range(2 if done.shape[2] else 0):  # the second time for what rounding has left of nearly dependent ones
        columns = columns - torch.bmm(done, torch.bmm(done.transpose(1, 2), columns.unsqueeze(2))).squeeze(2)
    return columns
