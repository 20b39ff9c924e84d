// Rows of x as f16 tiles for products of quantized matrices by matrix operations of warpgroups (wide.cuh).
//
// They are made of rows as q8.cuh has them. A row has a power of two, no larger than the largest of its groups' scales; a number is scale times byte
// over it, below 254, rounded to 11 bits. Two planes:
//
// | plane  | bytes                                | what it has                                                                         |
// |--------|--------------------------------------|-------------------------------------------------------------------------------------|
// | tiles  | ceil(n_rows / 64) * 64 * n_in * 2    | [ceil(n_rows / 64)][n_in / 64] tiles of 64 rows by 64 of k; those beyond the last are 0 |
// | powers | ceil(n_rows / 64) * 64 * 4           | f32, one a row, 1 beyond the last                                                    |
//
// Products by up to 16 and up to 32 rows of x read 16 and 32 rows of the only tile, and just these are written for them: `n_rows` is 16 or 32 in the table
// then, in place of a multiple of 64.
//
// A tile has 128 bytes a row, whose chunks of 16 bytes are swizzled: chunk c of row m stands at m * 128 + (c ^ m % 8) * 16. In the s-th of the 8 products of
// 16 of k that 128 columns are, pair t of half h is columns 32 t + 16 (s % 2) + 4 (s / 2) + h and 2 more: as a lane of wide.cuh unpacks weights.
#pragma once
#include "q8.cuh"
#include "reduce.cuh"

constexpr int WIDE_K = 64, WIDE_TILE_ROWS = 64, WIDE_TILE = WIDE_TILE_ROWS * WIDE_K * 2;
