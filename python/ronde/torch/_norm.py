"""The norm of a gradient, with the same bits however its parameters are divided among workers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

#: The elements that are squared at once, which bounds the memory.
_BLOCK = 1 << 22


def _folded(values: torch.Tensor) -> torch.Tensor:
    """Returns the sums of the rows of a matrix, in place, by adding halves: the order depends on the number of columns alone."""
    columns = values.shape[1]
    while columns > 1:
        half = 1 << ((columns - 1).bit_length() - 1)
        values[:, : columns - half].add_(values[:, half:columns])
        columns = half
    return values[:, 0] if columns else values.new_zeros(values.shape[0])


def _row_squares(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum of the squares of each row, in float64."""
    rows = values.shape[0] if values.dim() > 0 else 1
    matrix = values.reshape(rows, -1) if values.numel() > 0 else values.new_zeros(rows, 0)
    at_once = max(_BLOCK // max(matrix.shape[1], 1), 1)
    return torch.cat([_folded(part.to(torch.float64, copy=True).square_()) for part in matrix.split(at_once)])


def _all_row_squares(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the sums of squares of all rows of each gradient, on every worker."""
    squares = [_row_squares(gradient.to_local() if isinstance(gradient, DTensor) else gradient) for gradient in gradients]
    divided = [place for place, gradient in enumerate(gradients) if isinstance(gradient, DTensor)]
    if not divided:
        return squares
    first = gradients[divided[0]]
    assert isinstance(first, DTensor)
    group = first.device_mesh.get_group()
    size = dist.get_world_size(group)
    # Worker r has the rows from r times this number on.
    heights = [-(-gradients[place].shape[0] // size) for place in divided]
    mine = squares[divided[0]].new_zeros(sum(heights))
    for place, part in zip(divided, mine.split(heights), strict=True):
        part[: squares[place].numel()] = squares[place]
    everyone = torch.empty(size * mine.numel(), dtype=mine.dtype, device=mine.device)
    dist.all_gather_into_tensor(everyone, mine, group=group)
    for place, part in zip(divided, everyone.view(size, -1).split(heights, dim=1), strict=True):
        squares[place] = part.reshape(-1)[: gradients[place].shape[0]]
    return squares


def _check(gradient: torch.Tensor) -> None:
    if gradient.layout != torch.strided:
        raise ValueError("sparse gradients cannot be clipped")
    if isinstance(gradient, DTensor) and (gradient.device_mesh.ndim != 1 or gradient.placements != (Shard(0),)):
        raise ValueError(f"a gradient is divided as {gradient.placements}: only a division along the first dimension can be clipped")


@torch.no_grad()
def clip_grad_norm_(parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float) -> float:
    """Scales the gradients of parameters so that their norm is at most `max_norm`, and returns the norm from before: the square root of the
    sum of all squares, in float64. All workers call it. It has the same bits for whole parameters, and for those that `fully_shard` divides
    among any number of workers, which `torch.nn.utils.clip_grad_norm_` has not.

    Cost: about four passes over the gradients in float64, and with divided parameters an exchange of 8 bytes for each row.
    """
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [value.grad for value in given if value.grad is not None]
    if not gradients:
        return 0.0
    for gradient in gradients:
        _check(gradient)
    totals = [_folded(rows.clone().view(1, -1)) for rows in _all_row_squares(gradients)]
    norm = float(_folded(torch.cat([total.cpu() for total in totals]).view(1, -1)).sqrt())
    if norm > max_norm:
        for gradient in gradients:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local.mul_(max_norm / norm)
    return norm
