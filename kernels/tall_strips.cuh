// Strips of a tall matrix: each warp of a thread block takes several, one after the other, and waits for no other warp.
//
// The copies of the next strip are on their way while the last superblocks of a strip are added up, so memory waits neither for the end of a strip nor
// for a thread block's beginning. A row's sum is added up as in any strip that a warp has alone: superblock by superblock.
//
// Shared, for each warp: what strips.cuh says, and for Q6_K two tables of f16 scales behind those of all warps, TALL_TABLE_BYTES each. Shapes: n_in from
// TALL_LEAST_COLUMNS to TALL_COLUMNS. Measured on the simulator only: bench/runs.
#pragma once
#include "strips.cuh"

// The scales of a strip as they are in device memory, in chunks of 16 bytes, of which every second eight have their neighbours' places.
constexpr int TALL_TABLE_BYTES = STRIP * (TALL_COLUMNS / 256) * 2;
DEVICE int tall_chunk(int chunk) { return chunk ^ (chunk >> 3 & 1); }
DEVICE int tall_scale(int index) { return tall_chunk(index / 8) * 8 + index % 8; }

// Begins to copy the scales of a strip into a table.
template <class S>
DEVICE void copy_tall_table(const S& strip, int n_rows, uint16_t* table) {
    const int n = STRIP * strip.n_supers;
    if (n_rows == STRIP) {
        if (strip.lane * 8 < n) copy_once<0>(shared_at(table + tall_chunk(strip.lane) * 8), (const uint8_t*)(strip.supers + strip.lane * 8));
        return;
    }
    // The matrix may end within a chunk.
#pragma unroll 1
    for (int i = strip.lane; i < n; i += WARP) table[tall_scale(i)] = i < n_rows * strip.n_supers ? __ldg(strip.supers + i) : 0;
}

// What a thread block of 128 has of a tall matrix.
template <class F, int M>
DEVICE void multiply_tall(const Job& job, int block, const Input<M>& x) {
    constexpr int STAGES = 4, WARPS = STRIPS_OF_TALL, NEXT = WARPS * STRIP;
    using S = Strip<F, M, STAGES>;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int n_each = strips_of_warp(job.n_out);
    int first = block * n_each * NEXT + warp * STRIP;  // row of the strip that is added up
    const int end = min(job.n_out, (block + 1) * n_each * NEXT);
    if (first >= end) return;
    uint8_t* own = strip_room + warp * S::WARP_BYTES;
    uint16_t* tables = (uint16_t*)(strip_room + WARPS * S::WARP_BYTES + warp * 2 * TALL_TABLE_BYTES);
    auto table_of = [&](int which) { return tables + which * (TALL_TABLE_BYTES / 2); };
    auto job_of = [&](int row) { return StripJob{job.w, (size_t)job.n_out, (size_t)row, min(STRIP, job.n_out - row)}; };

    S strip(job_of(first), x, own);  // the one that is copied
    // Pairs of superblocks have what they have once together, so an odd one has an empty stage behind it.
    const int n_supers = strip.n_supers, n_padded = (n_supers + 1) / 2 * 2;
    if (S::HAS_HALVES) copy_tall_table(strip, min(STRIP, job.n_out - first), table_of(0));
    // As in sum_strip: weights first, and few rows of x next to them.
    constexpr int AHEAD = M <= 2 ? STAGES - 1 : 1;
    static_assert(STAGES - 1 <= TALL_LEAST_COLUMNS / 256, "the first copies are of one strip");
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        strip.copy_weights(i, i, n_supers);
        if (M <= 2) commit_copies();
    }
    await_earlier();
    if constexpr (M <= 2) {
        strip.template store_first_x<AHEAD>([](int i) { return i; }, n_supers);
    } else {
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) {
            if (i > 0) strip.copy_weights(i, i, n_supers);
            strip.copy_x(i, i);
            commit_copies();
        }
    }

    float acc[2][S::COLUMNS] = {};
    int super = 0, next_super = STAGES - 1, next_first = first, which = 0;
#pragma unroll 1
    for (int i = 0;; i++) {
        wait_copies<STAGES - 2>();
        __syncwarp();
        if (next_super == n_padded) {
            next_super = 0, next_first += NEXT;
            if (next_first < end) {
                strip.take(job_of(next_first), x.n_in);
                if (S::HAS_HALVES) copy_tall_table(strip, min(STRIP, job.n_out - next_first), table_of(which ^ 1));
            }
        }
        if (next_first < end && next_super < n_supers) strip.copy(i + STAGES - 1, next_super, n_supers);
        next_super++;
        commit_copies();
        if (super < n_supers) {
            float2 row_d = make_float2(0.0f, 0.0f);
            if (S::HAS_HALVES) {
                const uint16_t* d = table_of(which);
                row_d = make_float2(half_at(d[tall_scale(g * n_supers + super)]), half_at(d[tall_scale((g + 8) * n_supers + super)]));
            }
            strip.add(i, super, nullptr, row_d, acc);
        }
        if (++super < n_padded) continue;
        const int n_rows = min(STRIP, job.n_out - first);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = g + 8 * r;
            const float bias = job.bias && row < n_rows ? job.bias[first + row] : 0.0f;
#pragma unroll
            for (int c = 0; c < S::COLUMNS; c++) {
                const int m = c / 2 * 8 + 2 * t + c % 2;
                if (row < n_rows && m < min(M, x.n_rows)) job.y[(size_t)m * job.n_out + first + row] = acc[r][c] + bias;
                acc[r][c] = 0.0f;
            }
        }
        super = 0, which ^= 1, first += NEXT;
        if (first >= end) break;
    }
}
