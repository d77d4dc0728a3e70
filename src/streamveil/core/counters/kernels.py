"""The hottest loop: one BLT step for many keys, noise included, in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streamveil.compiled import njit
from streamveil.core.counters import Ids, gaussian_about
from streamveil.core.noise import Draws
from streamveil.core.noise.samplers import (
    Asked,
    as_scales,
    fill,
    gaussian_table,
    rounded_gaussian_word,
    settle,
)
from streamveil.types import Array, Float64, Int64

Pair = tuple[Int64[Array, " keys"], Float64[Array, "d keys"]]
WORDS = 1 << 20  # random words held at a time by `blt_run`
BLOCK = 1024  # keys drawn at a time


@dataclass(frozen=True)
class Coefficients:
    """The public numbers of one step."""

    keep: Float64[Array, " d"]
    drain: Float64[Array, " d"]
    scale: float  # D_t
    spread: float  # sigma D_t
    share: Float64[Array, " keys"] | None = None  # the noise of each key is divided by its own

    @property
    def spreads(self) -> Float64[Array, " one_or_keys"]:
        """The scale of every key's noise; one serves all where none has a share."""
        if self.share is None:
            return np.array([self.spread])
        return as_scales(self.spread / self.share, self.share.shape)

    def offset(self, real: Float64[Array, "d keys"]) -> Float64[Array, " keys"]:
        """o_t = -D_t sum_i drain_i s_i, added in order of i."""
        total = self.drain[0] * real[0]
        for i in range(1, len(self.drain)):
            total = total + self.drain[i] * real[i]
        return np.asarray(-self.scale * total)

    def used(
        self, real: Float64[Array, "d keys"], offset: Array, fresh: Array
    ) -> Float64[Array, "d keys"]:
        """The buffers after the noise z_t = (k_t - o_t) / D_t."""
        return np.asarray(self.keep[:, None] * real + (fresh - offset) / self.scale)


def plain_step(
    real: Float64[Array, "d keys"], step: Coefficients, draws: Draws, ids: Ids | None
) -> Pair:
    """(k_t, buffers after): the definition, and the oracle of `blt_step`."""
    offset, spreads = step.offset(real), step.spreads
    fresh = gaussian_about(draws, ids, offset, spreads if len(spreads) != 1 else float(spreads[0]))
    return fresh, step.used(real, offset, fresh)


def blt_step(
    totals: Int64[Array, "lanes known"],
    real: Float64[Array, "d_lanes known"],
    increments: Int64[Array, "lanes keys"],
    step: Coefficients,
    draws: Draws,
    ids: Ids | None,
) -> tuple[Int64[Array, "lanes keys"], Float64[Array, "d_lanes keys"]]:
    """(total + increment + k_t, buffers after), with the bits of `plain_step`.

    Keys beyond those of the state start now: their columns were zero. Lanes that share a counter
    are one step of as many columns: lane l of a key uses the key's word l, and buffer i of it is
    row i * lanes + l of `real`.
    """
    (lanes, keys), total, buffers = increments.shape, totals[0], real
    columns, moved = lanes * keys, np.ascontiguousarray(increments).reshape(-1)
    if lanes > 1:
        total = wider(totals, keys).reshape(-1)
        buffers = wider(real, keys).reshape(len(step.keep), columns)
        step = step if step.share is None else replace(step, share=np.tile(step.share, lanes))
    if draws.silent or not keys:
        fresh, after = plain_step(wider(buffers, columns), step, draws, None)
        found = wider(total, columns) + moved + fresh
        return found.reshape(lanes, keys), after.reshape(len(real), keys)
    words = draws.words(columns) if ids is None else draws.words_for(ids, lanes)
    words = np.ascontiguousarray(words).reshape(keys, lanes)
    found, after = np.empty(columns, np.int64), np.empty((len(buffers), columns))
    sure, spreads = np.empty(columns, np.bool_), step.spreads
    _advance(
        words.T.reshape(-1), total, moved, buffers, step.keep, step.drain, step.scale, spreads,
        gaussian_table(), found, after, sure,
    )  # fmt: skip
    if not sure.all():
        unsure, buffers = np.flatnonzero(~sure), wider(buffers, columns)
        by_key = np.arange(columns).reshape(lanes, keys).T.reshape(-1)
        offset = step.offset(buffers)
        fresh = settle(
            Asked(draws, ids, lanes), unsure % keys * lanes + unsure // keys, words.reshape(-1),
            offset[by_key], spreads if len(spreads) == 1 else spreads[by_key],
        )  # fmt: skip
        found[unsure] = wider(total, columns)[unsure] + moved[unsure] + fresh
        after[:, unsure] = step.used(buffers[:, unsure], offset[unsure], fresh)
    return found.reshape(lanes, keys), after.reshape(len(real), keys)


def wider(columns: Array, keys: int) -> Array:
    """The columns, with columns of zeros appended up to `keys`."""
    missing = keys - columns.shape[-1]
    zeros = np.zeros((*columns.shape[:-1], missing), columns.dtype)
    return np.concatenate([columns, zeros], axis=-1) if missing else columns


@dataclass(frozen=True)
class StepRun:
    """The public numbers of several consecutive steps."""

    keep: Float64[Array, " d"]
    drain: Float64[Array, " d"]
    scales: Float64[Array, " steps"]  # D_t
    spreads: Float64[Array, " steps"]  # sigma D_t

    def step(self, i: int) -> Coefficients:
        """The coefficients of step `i` of the run."""
        return Coefficients(self.keep, self.drain, float(self.scales[i]), float(self.spreads[i]))


def blt_run(pair: Pair, run: StepRun, draws: Draws, ids: Ids | None) -> Pair:
    """(total, buffers) after steps without increments, in one compiled pass.

    A key uses its own words 0, 1, .. at this address, one per step. Its draws have the bits of
    `plain_step`.
    """
    if ids is None:
        return _run_of(pair, run, draws, None)
    size, (total, real) = max(1, WORDS // len(run.scales)), pair
    parts = [slice(start, start + size) for start in range(0, len(total), size)]
    done = [_run_of((total[part], real[:, part]), run, draws, ids[part]) for part in parts]
    return np.concatenate([one for one, _ in done]), np.hstack([rows for _, rows in done])


def _run_of(pair: Pair, run: StepRun, draws: Draws, ids: Ids | None) -> Pair:
    """`blt_run` of keys whose words fit into memory together."""
    total, real = pair[0].copy(), pair[1].copy(order="C")
    steps, sure = len(run.scales), np.empty(len(total), np.bool_)
    words = draws.words(len(total) * steps) if ids is None else draws.words_for(ids, steps)
    words = words.reshape(-1, steps)
    _run(
        np.ascontiguousarray(words.T), total, real, run.keep, run.drain, run.scales, run.spreads,
        gaussian_table(), sure,
    )  # fmt: skip
    for key in np.flatnonzero(~sure).tolist():
        one, asked = (pair[0][key], pair[1][:, [key]]), Asked(draws, ids, steps)
        total[key], real[:, key] = _settled_run(one, run, words, key, asked)
    return total, real


def _settled_run(one: Pair, run: StepRun, words: Array, key: int, asked: Asked) -> Pair:
    """`blt_run` of one key, some of whose draws need multiprecision."""
    total, real = one
    for i in range(len(run.scales)):
        step, index = run.step(i), np.array([key * len(run.scales) + i])
        offset = step.offset(real)
        fresh, sure = rounded_gaussian_word(words[key, i], offset[0], step.spread, gaussian_table())
        if not sure:
            centre = np.zeros(words.size)
            centre[index] = offset
            spread = np.array([step.spread])
            fresh = settle(asked, index, words.reshape(-1), centre, spread)[0]
        total, real = total + fresh, step.used(real, offset, np.array([fresh]))
    return total, real[:, 0]


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def _run(  # type: ignore[no-untyped-def]  # noqa: PLR0913  (one flat loop for numba)
    words, totals, real, keep, drain, scales, spreads, table, sure
):
    nothing, fine = np.zeros(len(totals), np.int64), np.empty(len(totals), np.bool_)
    sure[:] = True
    for i in range(len(scales)):
        _advance(
            words[i], totals, nothing, real, keep, drain, scales[i], spreads[i : i + 1], table,
            totals, real, fine,
        )  # fmt: skip
        sure &= fine


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def _advance(  # type: ignore[no-untyped-def]  # noqa: PLR0913  (one flat loop for numba)
    words, total, increments, real, keep, drain, scale, spreads, table, totals, after, sure
):
    """A step in blocks that stay in the first cache, so that the draws are vectorised."""
    known, keys = len(total), len(totals)
    offsets, drawn = np.empty(BLOCK), np.empty(BLOCK, np.int64)
    for start in range(0, keys, BLOCK):
        stop = min(start + BLOCK, keys)
        old = max(start, min(stop, known))  # columns from here on are new
        offset, fresh = offsets[: stop - start], drawn[: stop - start]
        _offsets(real[:, start:old], drain, scale, offset)
        scales = spreads if len(spreads) == 1 else spreads[start:stop]
        fill(words[start:stop], offset, scales, table, fresh, sure[start:stop])
        for k in range(len(offset)):  # the noise that is used replaces the offset
            offset[k] = (fresh[k] - offset[k]) / scale
        _add(total[start:old], increments[start:stop], fresh, totals[start:stop])
        for i in range(len(keep)):
            _decay(real[i, start:old], keep[i], offset, after[i, start:stop])


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def _offsets(real, drain, scale, offset):  # type: ignore[no-untyped-def]
    """`Coefficients.offset` of the columns of the state; 0 behind them."""
    offset[:] = 0.0
    known = real.shape[1]
    for i in range(len(drain)):
        weight, row = drain[i], real[i]
        for k in range(known):
            offset[k] += weight * row[k]
    for k in range(known):
        offset[k] = -scale * offset[k]


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def _add(total, increments, fresh, totals):  # type: ignore[no-untyped-def]
    """Totals after a step; those of new keys begin at 0."""
    known = len(total)
    for k in range(known):
        totals[k] = total[k] + increments[k] + fresh[k]
    for k in range(known, len(totals)):
        totals[k] = increments[k] + fresh[k]


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def _decay(row, keep, noise, after):  # type: ignore[no-untyped-def]
    """One buffer after a step."""
    known = len(row)
    for k in range(known):
        after[k] = keep * row[k] + noise[k]
    for k in range(known, len(after)):
        after[k] = noise[k]


@njit(cache=True)
def advance_spread(rows: Array, keep: Array, drain: Array, scale: float, fresh: Array) -> None:
    """Adds one step of noise of variance `fresh` to the second moments of every key."""
    d = len(keep)
    pairs = d * (d + 1) // 2
    spent = np.empty(d)
    for key in range(rows.shape[1]):
        quadratic, mixed = 0.0, 0.0
        for i in range(d):
            spent[i] = 0.0
            for j in range(d):
                low, high = min(i, j), max(i, j)
                spent[i] += rows[high * (high + 1) // 2 + low, key] * drain[j]
            quadratic += drain[i] * spent[i]
            mixed += drain[i] * rows[pairs + i, key]
        new = fresh[key]
        rows[pairs + d, key] += scale**2 * (new + quadratic) - 2 * scale * mixed
        for i in range(d):
            cross = rows[pairs + i, key]
            rows[pairs + i, key] = keep[i] * (cross - scale * spent[i]) + scale * new
            for j in range(i + 1):
                cell = i * (i + 1) // 2 + j
                rows[cell, key] = rows[cell, key] * keep[i] * keep[j] + new
