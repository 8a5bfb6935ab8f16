"""α-entmax on CPU rows by groups: most of a wide row is never touched.

One pass takes the maximum of every group of neighbouring logits. Solving the row made of those
maxima alone gives an S that is too small by little (more entries can only raise it), and an entry
below S − 1/(α−1) has probability zero: so every group whose maximum lies below is skipped. The
groups that remain are gathered into a narrow matrix and solved there; where they are many, what
lies above the line in them is gathered once more, entry by entry. Rows where most groups remain
(flat rows, α near 1) are solved in full, block by block in cache, from the same start.
"""

from __future__ import annotations

from typing import NamedTuple

from uncork.nn._rows import Alpha, blocks
from uncork.nn._threads import over_rows
from uncork.nn._torch import torch
from uncork.nn.transforms.deformed import along_simplex, exp_alpha, log_in_place
from uncork.nn.transforms.pages import empty_like
from uncork.nn.transforms.threshold import by_power, entmax_shift, power_level, shifted

Tensor = torch.Tensor

GROUP = 32  # floats: two cache lines. Smaller makes the maxima many, larger the groups
NARROW = 512  # rows this short are solved directly
_SAMPLE = 8  # a full row is first solved on one entry in this many
_KEEP_AT_MOST = 4  # gather only where at most one group in this many remains
_MANY = 64  # groups of a row, from which on their entries are sorted out


def entmax_rows(z: Tensor, alpha: Alpha, logarithm: bool = False) -> Tensor:
    """p = exp_α(z − S) for each row, or log p.  z (R, n), alpha a float or (R, 1)  →  (R, n)."""
    out = empty_like(z)

    def solve(rows: slice) -> None:
        some, own = z[rows], _rows_of(alpha, rows)
        if z.shape[1] < NARROW:
            _solve_full(some, own, shifted(some)[1], None, None, out[rows], logarithm)
            return
        _solve_some(some, own, out[rows], logarithm)

    over_rows(solve, *z.shape)
    return out


def _solve_some(z: Tensor, alpha: Alpha, out: Tensor, logarithm: bool) -> None:
    nothing = -torch.inf if logarithm else 0.0  # what an entry off the support gets
    heads = split(z)[0]
    tops, top, floor, kept, sparse = _filtered(z, alpha)
    if bool(sparse.all()):
        _solve_kept(z, alpha, floor, tops, top, kept, out.fill_(nothing), logarithm)
    elif not bool(sparse.any()):
        _solve_full(z, alpha, top, floor, _sampled(heads, top, alpha), out, logarithm)
    else:
        few, many = sparse.nonzero().squeeze(1), (~sparse).nonzero().squeeze(1)
        part = z.new_full((len(few), z.shape[1]), nothing)
        of_few = (floor[few], tops[few], top[few], kept[few])
        out[few] = _solve_kept(z[few], _rows_of(alpha, few), *of_few, part, logarithm)
        part = z.new_empty(len(many), z.shape[1])
        alpha = _rows_of(alpha, many)
        guess = _sampled(heads[many], top[many], alpha)
        out[many] = _solve_full(z[many], alpha, top[many], floor[many], guess, part, logarithm)


def _filtered(z: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(maxima of the groups and then the tail, each row's maximum, a lower bound of s, how many
    groups may hold support, whether these are few)."""
    heads, tail = split(z)
    tops = heads.amax(-1)
    if tail.shape[1]:
        tops = torch.cat([tops, tail], 1)  # (R, groups + tail)
    v, top = shifted(tops)
    floor = _below(entmax_shift(v, alpha))
    # Every entry that can be positive lies above this line (slack for rounding).
    line = floor - _reach(alpha)
    kept = (v[:, : heads.shape[1]] > line).sum(1)
    return tops, top, floor, kept, are_few(kept, heads.shape[1]) & top.squeeze(1).isfinite()


def are_few(kept: Tensor, groups: int) -> Tensor:
    """Whether to gather the groups that are kept, rather than to take the whole row."""
    return kept * _KEEP_AT_MOST <= groups


def entmax_rows_topk(z: Tensor, alpha: float, k: int) -> tuple[Tensor, Tensor]:
    """The k largest log p of each row and their classes, largest first.  z (R, n) → (R, k) twice.

    Where the support is small nothing as wide as the row is made.
    """
    values = z.new_empty(len(z), k)
    classes = torch.empty(len(z), k, dtype=torch.int64)

    def solve(rows: slice) -> None:
        some = z[rows]
        tops, top, floor, kept, sparse = _filtered(some, alpha)
        if not bool(sparse.all()):
            made = torch.empty_like(some)
            _solve_some(some, alpha, made, True)
            torch.topk(some, k, out=(values[rows], classes[rows]))
            torch.gather(made, 1, classes[rows], out=values[rows])
            return
        groups = z.shape[1] // GROUP
        most = max(int(kept.max()), min(k, groups))  # k groups hold the k largest
        found = _candidates(some, alpha, floor, tops, top) if most >= _MANY else None
        if found is not None and found.fewest >= k:
            place = found.v.topk(k).indices
            classes[rows] = found.classes.gather(1, place)
            _solve_narrow(found.v, alpha, floor)
            values[rows] = log_in_place(found.v.gather(1, place))
            return
        for part in blocks(len(some), most * GROUP + GROUP):
            index = tops[part, :groups].topk(most, sorted=False).indices
            v = gather(some[part], index).sub_(top[part])
            place = v.topk(k).indices
            classes[rows][part] = classes_at(place, index, groups)
            _solve_narrow(v, alpha, floor[part])
            values[rows][part] = log_in_place(v.gather(1, place))

    over_rows(solve, *z.shape)
    return values, classes


class Candidates(NamedTuple):
    """A row's entries that may be positive, and all of its tail."""

    v: Tensor  #: (R, W), less the row's largest entry; −inf where a row has fewer
    classes: Tensor  #: (R, W)
    row: Tensor  #: (E), whose each one is that is not of the tail
    place: Tensor  #: (E), and where in v
    fewest: int  #: of a row


def _candidates(z: Tensor, alpha: Alpha, floor: Tensor, tops: Tensor, top: Tensor) -> Candidates:
    """Of rows z (R, n) as `_filtered` has them."""
    heads, tail = split(z)
    line = top + (floor - _reach(alpha))
    row, group = (tops[:, : heads.shape[1]] > line).nonzero(as_tuple=True)
    of_groups = heads[row, group]
    which, lane = (of_groups > line[row]).nonzero(as_tuple=True)
    values, row, group = of_groups[which, lane], row[which], group[which]
    count = torch.bincount(row, minlength=len(z))
    place = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    width = int(count.max())
    v = z.new_full((len(z), width + tail.shape[1]), -torch.inf)
    classes = torch.zeros(v.shape, dtype=torch.int64)
    v[row, place] = values
    classes[row, place] = group * GROUP + lane
    v[:, width:] = tail
    classes[:, width:] = torch.arange(z.shape[1] - tail.shape[1], z.shape[1])
    return Candidates(v.sub_(top), classes, row, place, int(count.min()))


def classes_at(place: Tensor, index: Tensor, groups: int) -> Tensor:
    """Which classes stand at `place` (r, k) of what `gather` made of the groups `index`."""
    width = index.shape[1]
    group = place.div(GROUP, rounding_mode="floor")
    own = index.gather(1, group.clamp(max=width - 1)) * GROUP + place % GROUP
    return torch.where(group < width, own, place + (groups - width) * GROUP)


def _sampled(heads: Tensor, top: Tensor, alpha: Alpha) -> Tensor:
    """S of a row from one entry in eight, each counted eight times: so close to the solution that
    two or three passes over the whole row finish it."""
    v = heads[:, :, : GROUP // _SAMPLE].flatten(1) - top
    return entmax_shift(v, alpha, torch.zeros_like(top), None, _SAMPLE)


def entmax_rows_vjp(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Gradient of the rows: s∘(g − ⟨s, g⟩/Σs), s = p^{2−α}.  p, grad (R, n) → (R, n).

    Reads and writes only groups that hold support where these are few.
    """
    out = empty_like(p)

    def pull(rows: slice) -> None:
        some = _vjp_full if p.shape[1] < NARROW else _vjp_some
        some(p[rows], grad[rows], alpha, out[rows])

    over_rows(pull, *p.shape)
    return out


def _vjp_some(p: Tensor, grad: Tensor, alpha: float, out: Tensor) -> Tensor:
    heads = split(p)[0]
    # One group in eight tells a dense block of rows from a sparse one before all are looked at.
    probe = (heads[:, ::_SAMPLE].amax(-1) > 0).float().mean(1)
    if float(probe.min()) > 2 / _KEEP_AT_MOST:
        return _vjp_full(p, grad, alpha, out)
    tops = heads.amax(-1)
    kept = (tops > 0).sum(1)
    sparse = kept * _KEEP_AT_MOST <= tops.shape[1]
    if bool(sparse.all()):
        _vjp_kept(p, grad, alpha, tops, kept, out.zero_())
    elif not bool(sparse.any()):
        _vjp_full(p, grad, alpha, out)
    else:
        few, many = sparse.nonzero().squeeze(1), (~sparse).nonzero().squeeze(1)
        part = p.new_zeros(len(few), p.shape[1])
        out[few] = _vjp_kept(p[few], grad[few], alpha, tops[few], kept[few], part)
        part = p.new_empty(len(many), p.shape[1])
        out[many] = _vjp_full(p[many], grad[many], alpha, part)
    return out


def split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Whole groups (R, groups, GROUP) and the few entries past the last one (R, < GROUP)."""
    whole = rows.shape[1] // GROUP * GROUP
    return rows[:, :whole].unflatten(1, (-1, GROUP)), rows[:, whole:]


def _below(start: Tensor) -> Tensor:
    return start * (1 - 16 * torch.finfo(start.dtype).eps)


def _reach(alpha: Alpha) -> Alpha:
    """1/(α−1), a little more than how far below S the support reaches: for α ≤ 1, for ever."""
    if isinstance(alpha, Tensor):
        return torch.where(alpha > 1, (1 + 1e-5) / (alpha - 1), torch.inf)
    return (1 + 1e-5) / (alpha - 1) if alpha > 1 else torch.inf


def _rows_of(alpha: Alpha, index: Tensor | slice) -> Alpha:
    if isinstance(alpha, Tensor) and alpha.shape[0] > 1:
        return alpha[index]
    return alpha


def gather(rows: Tensor, index: Tensor) -> Tensor:
    """The groups `index` (r, G) of each row, then its tail: (r, G·GROUP + tail)."""
    heads, tail = split(rows)
    lines = torch.arange(rows.shape[0]).unsqueeze(1)
    narrow = heads[lines, index].flatten(1)
    return torch.cat([narrow, tail], 1) if tail.shape[1] else narrow


def scatter(out: Tensor, index: Tensor, narrow: Tensor) -> None:
    heads, tail = split(out)
    lines = torch.arange(out.shape[0]).unsqueeze(1)
    width = index.shape[1] * GROUP
    heads[lines, index] = narrow[:, :width].unflatten(1, (index.shape[1], GROUP))
    tail.copy_(narrow[:, width:])


def _solve_kept(
    z: Tensor,
    alpha: Alpha,
    start: Tensor,
    tops: Tensor,
    top: Tensor,
    kept: Tensor,
    out: Tensor,
    logarithm: bool,
) -> Tensor:
    groups = z.shape[1] // GROUP
    if not len(z):
        return out
    if int(kept.max()) >= _MANY:
        found = _candidates(z, alpha, start, tops, top)
        _solve_narrow(found.v, alpha, start)
        p = log_in_place(found.v) if logarithm else found.v
        at = found.row, found.place
        out[found.row, found.classes[at]] = p[at]
        past = z.shape[1] % GROUP
        out[:, z.shape[1] - past :] = p[:, p.shape[1] - past :]
        return out
    for rows in blocks(len(z), int(kept.max()) * GROUP + GROUP):
        keep = max(1, int(kept[rows].max()))
        index = tops[rows, :groups].topk(keep, sorted=False).indices
        v = gather(z[rows], index).sub_(top[rows])
        block_alpha = _rows_of(alpha, rows)
        _solve_narrow(v, block_alpha, start[rows])
        scatter(out[rows], index, log_in_place(v) if logarithm else v)
    return out


def _solve_narrow(v: Tensor, alpha: Alpha, start: Tensor) -> None:
    """v, less each row's largest entry, becomes p."""
    if not _solve_steep(v, alpha, v):
        _finish_block(v, entmax_shift(v, alpha, start), alpha, v)


def _solve_full(
    z: Tensor,
    alpha: Alpha,
    top: Tensor,
    floor: Tensor | None,
    guess: Tensor | None,
    out: Tensor,
    logarithm: bool,
) -> Tensor:
    scratch = v = z.new_empty(0)
    for rows in blocks(*z.shape):
        block = z[rows]
        if v.shape != block.shape:  # the last block may be shorter
            v, scratch = torch.empty_like(block), torch.empty_like(block)
        torch.sub(block, top[rows], out=v)
        block_alpha = _rows_of(alpha, rows)
        if not _solve_steep(v, block_alpha, out[rows]):
            low = None if floor is None else floor[rows]
            near = None if guess is None else guess[rows]
            s = entmax_shift(v, block_alpha, low, near, scratch=scratch)
            _finish_block(v, s, block_alpha, out[rows])
        if logarithm:
            log_in_place(out[rows])
    return out


def _solve_steep(v: Tensor, alpha: Alpha, out: Tensor) -> bool:
    """out = p where every α exceeds 2 (and of mixed ones, row by row); otherwise nothing."""
    if not isinstance(alpha, Tensor):
        if alpha > 2:
            out.copy_(by_power(v, alpha, power_level(v, alpha)))
        return alpha > 2
    steep = (alpha > 2).expand(len(v), 1).squeeze(1)
    if not bool(steep.any()):
        return False
    p = by_power(v, alpha, power_level(v, alpha))
    if not bool(steep.all()):
        flat = v[~steep]
        own = alpha.expand(len(v), 1)[~steep]
        _finish_block(flat, entmax_shift(flat, own), own, flat)
        p[~steep] = flat
    out.copy_(p)
    return True


def _finish_block(v: Tensor, s: Tensor, alpha: Alpha, out: Tensor) -> None:
    """out = exp_α(v − s), in as few passes as it can be for the two usual α."""
    if not isinstance(alpha, Tensor) and alpha == 2:
        torch.sub(v, s - 1, out=out).relu_()
    elif not isinstance(alpha, Tensor) and alpha == 1.5:
        torch.add(1 - 0.5 * s, v, alpha=0.5, out=out).relu_().square_()
    else:
        out.copy_(finish(v.sub_(s), alpha, None if isinstance(alpha, Tensor) else v))


def finish(x: Tensor, alpha: Alpha, out: Tensor | None = None) -> Tensor:
    """exp_α(x), divided by its sum where α may exceed 2: there exp_α has vertical tangents, and the
    last bit of S moves the sum by far more than a rounding error. (Or be below 1, as a tensor may.)
    """
    p = exp_alpha(x, alpha, out)
    if isinstance(alpha, Tensor) or not 1 <= alpha <= 2:
        total = p.sum(-1, keepdim=True)
        p = torch.div(p, torch.where(total == 0, torch.ones_like(total), total), out=out)
    return p


def _vjp_kept(
    p: Tensor, grad: Tensor, alpha: float, tops: Tensor, kept: Tensor, out: Tensor
) -> Tensor:
    if not len(p):
        return out
    for rows in blocks(len(p), int(kept.max()) * GROUP + GROUP):
        keep = max(1, int(kept[rows].max()))
        index = tops[rows].topk(keep, sorted=False).indices
        narrow = gather(p[rows], index)
        pulled = gather(grad[rows], index)
        scatter(out[rows], index, _vjp(narrow, pulled, alpha, torch.empty_like(narrow), pulled))
    return out


def _vjp_full(p: Tensor, grad: Tensor, alpha: float, out: Tensor) -> Tensor:
    scratch = p.new_empty(0)
    for rows in blocks(*p.shape):
        if scratch.shape != p[rows].shape:
            scratch = torch.empty_like(p[rows])
        _vjp(p[rows], grad[rows], alpha, out[rows], scratch)
    return out


def _vjp(p: Tensor, grad: Tensor, alpha: float, out: Tensor, scratch: Tensor) -> Tensor:
    if alpha == 2:
        slope = torch.sign(p, out=out)
    elif alpha == 1.5:
        # √p as p/√p: the vector library's square root is ten times slower where it meets zeros.
        slope = torch.clamp(p, min=torch.finfo(p.dtype).tiny, out=out).rsqrt_().mul_(p)
    elif alpha < 2:
        slope = torch.pow(p, 2 - alpha, out=out)  # 0 at 0
    else:
        return out.copy_(along_simplex(p, grad, alpha))
    total = slope.sum(-1, keepdim=True)
    pushed = torch.mul(slope, grad, out=scratch)
    # A masked row has no support: 0/0 there must stay 0.
    mean = pushed.sum(-1, keepdim=True) / torch.where(total == 0, torch.ones_like(total), total)
    return torch.addcmul(pushed, slope, mean, value=-1, out=out)
