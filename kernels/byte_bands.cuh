// Bands (bands.cuh) of a format whose weights are bytes: groups of 32 with one scale, Q8_0. What is as there is not said again.
//
// A step is 128 columns. Bytes need no unpacking: `ldmatrix` hands out a group of 16 rows as mma.m16n8k32 wants it, from the planes of its first and its
// last 16. A product begins at the bits of 1.5 * 2^23, so a sum takes two instructions; the scale of a group has 11 bits, and |dot| is below 2^22. Of a
// low band each warp adds one group of a step up.
//
// Shared: the constants, whose twin is `crates/cuda-exec/src/bands.rs`. No bank conflicts: chunks of 16 bytes are spread by XOR.
#pragma once
#include "bands.cuh"

constexpr int BYTE_BAND_SHARED = 81 << 10;  // of which a multiprocessor of compute capability 8.0 has two

template <class F, int TILES, int HEIGHT, bool GATED>
struct Band<F, TILES, HEIGHT, GATED, std::enable_if_t<F::ARE_BYTES>> {
    static constexpr int THREADS = BAND_WARPS * WARP, COLUMNS = 8 * TILES, STRIPS = HEIGHT / STRIP, SLICES = BAND_WARPS * 2 / STRIPS;
    static constexpr int GROUPS = 4;  // of a step
    static constexpr int STRIP_BYTES = GROUPS * STRIP * 32, X = STRIPS * STRIP_BYTES;
    // Scales of x: a row of each group, padded so that groups are in different banks.
    static constexpr int SCALES_ROW = COLUMNS * 4 + 32, SCALES = X + GROUPS * COLUMNS * 32, STAGE = SCALES + GROUPS * SCALES_ROW;
    // Scales of weights, 16 bytes a row and superblock.
    static constexpr int TAILS_BYTES = HEIGHT * 16;
    static constexpr int shared_bytes(int stages) { return stages * STAGE + (stages / 2 + 1) * TAILS_BYTES; }
    static constexpr int STAGES = shared_bytes(5) <= BYTE_BAND_SHARED ? 5 : shared_bytes(4) <= BYTE_BAND_SHARED ? 4 : 3;
    static constexpr int TAILS = STAGES * STAGE, N_TAILS = STAGES / 2 + 1;
    static_assert(shared_bytes(STAGES) <= BYTE_BAND_SHARED, "two bands fit");
    static_assert(SLICES == 1 || SLICES == GROUPS, "a warp has 32 rows");

    const uint8_t *w, *up, *x_bytes, *x_records;
    size_t last_halves, scales;  // where planes of a matrix begin
    int n_in, n_rows, n_out, first, slice, pair;

    __device__ __forceinline__ Band(const BandJob& job, const int8_t* xq, const Q8Scale* xs, int n_rows, int n_in)
        : w(job.w), up(job.up), x_bytes((const uint8_t*)xq), x_records((const uint8_t*)xs), n_in(n_in), n_rows(n_rows), n_out(job.n_out),
          first(job.first) {
        last_halves = plane_bytes((size_t)n_out * (n_in / GROUP), 16);
        scales = 2 * last_halves;
        const int warp = threadIdx.x / WARP;
        slice = SLICES == 1 ? 0 : warp;
        pair = SLICES == 1 ? warp : 0;
    }

    // Where row `row`, or the last, begins. Volatile: computed again each time, since there are not enough registers to keep it.
    static __device__ __forceinline__ const uint8_t* row_at(const uint8_t* base, uint32_t row, uint32_t n_there, uint32_t row_bytes) {
        const uint8_t* at;
        asm volatile("{ .reg .u32 r; min.u32 r, %1, %2; mad.wide.u32 %0, r, %3, %4; }" : "=l"(at) : "r"(row), "r"(n_there - 1), "r"(row_bytes), "l"(base));
        return at;
    }
    // Row `row` of strip `strip` in the matrix.
    __device__ __forceinline__ uint32_t row_of(int strip, int row) const { return first + (GATED ? strip / 2 : strip) * STRIP + row; }
    __device__ __forceinline__ const uint8_t* matrix_of(int strip) const { return GATED && strip % 2 ? up : w; }
    static __device__ __forceinline__ int weights_at(int half, int group, int row) { return ((half * GROUPS + group) * STRIP + (row ^ (2 * group + half))) * 16; }
    static __device__ __forceinline__ int x_at(int half, int group, int m) { return X + ((half * GROUPS + group) * COLUMNS + (m ^ (2 * group + half))) * 16; }

    // The index of this thread. Where registers are fewest, places in shared memory are computed again each time.
    static __device__ __forceinline__ int thread_index() { return TILES == 8 ? asked_again(threadIdx.x) : threadIdx.x; }
    // Begins to copy the weights of step `step` into stage `to`; the first of a superblock brings its scales.
    __device__ __forceinline__ void copy_weights(uint32_t room, int to, int step) const {
        const int thread = thread_index(), group = thread % 4, half = thread / 4 % 2, row = thread / 8;
        const uint32_t stage = room + to * STAGE + weights_at(half, group, row);
        const size_t from = half * last_halves + step * 64 + group * 16;
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++)
            copy_once<0>(stage + strip * STRIP_BYTES, row_at(matrix_of(strip) + from, row_of(strip, row), n_out, n_in / 2));
        if (step % 2 != 0 || thread >= HEIGHT) return;
        const int strip = thread / STRIP;
        copy_once<0>(room + TAILS + step / 2 % N_TAILS * TAILS_BYTES + thread * 16,
                     row_at(matrix_of(strip) + scales + step / 2 * 16, row_of(strip, thread % STRIP), n_out, n_in / 16));
    }
    // Begins to copy the part of the rows of x that step `step` is multiplied by.
    __device__ __forceinline__ void copy_rows_of_x(uint32_t room, int to, int step) const {
        const uint32_t stage = room + to * STAGE;
        const int thread = thread_index(), group = thread % 4, half = thread / 4 % 2;
#pragma unroll
        for (int before = 0; before < COLUMNS; before += 16) {
            const int m = before + thread / 8;
            copy_once<0>(stage + x_at(half, group, m), row_at(x_bytes + half * (n_in / 2) + step * 64 + group * 16, m, n_rows, n_in));
        }
#pragma unroll
        for (int before = 0; before < COLUMNS; before += 32) {
            const int m = before + thread / 4;
            if (COLUMNS % 32 == 0 || m < COLUMNS)
                copy_shared<4>(stage + SCALES + group * SCALES_ROW + m * 4, row_at(x_records + step * 32 + group * 8, m, n_rows, n_in / 4));
        }
    }

    // Adds the products of tiles of x from 2 TWO on.
    template <int TWO>
    static __device__ __forceinline__ void add_tiles(uint32_t x, const float* x_scales, const uint32_t (&words)[2][4], const ExactScale (&scale)[2][2],
                                                     float (&acc)[2][TILES][4]) {
        uint32_t b[4];
        load_words<TWO * 256>(b, x);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int n = 2 * TWO + i;
            const float2 its = *(const float2*)(x_scales + 8 * n);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                int dot[4];
                multiply_onto_mantissa(dot, words[s], b[2 * i], b[2 * i + 1]);
#pragma unroll
                for (int k = 0; k < 4; k++) acc[s][n][k] = fmaf(k % 2 ? its.y : its.x, scale[s][k / 2].of_sum(dot[k]), acc[s][n][k]);
            }
        }
        if constexpr (2 * TWO + 2 < TILES) add_tiles<TWO + 1>(x, x_scales, words, scale, acc);
    }

    // Adds step `step`, which is in stage `from`.
    __device__ __forceinline__ void add(const uint8_t* room_bytes, int from, int step, float (&acc)[2][TILES][4]) const {
        const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        const uint8_t* bytes = room_bytes + from * STAGE;
        const uint32_t stage = shared_at(bytes);
        const uint8_t* tails_of = room_bytes + TAILS + step / 2 % N_TAILS * TAILS_BYTES + (2 * pair * STRIP + g) * 16 + step % 2 * 8;
        // ldmatrix: rows 0 to 7 and 8 to 15 of the first halves of a group, then of the last; of x the first and the last half of 8 rows, and of 8 more.
        const int their_half = lane / 16, their_row = lane % 16;
        uint2 d[2][2];  // of four groups
#pragma unroll
        for (int i = 0; i < 4; i++) d[i / 2][i % 2] = *(const uint2*)(tails_of + i * 8 * 16);
        // By many rows of x there are not enough registers to unroll them all.
        constexpr int AT_ONCE = TILES == 2 ? 4 : TILES == 4 ? 2 : 1;
#pragma unroll AT_ONCE
        for (int i = 0; i < GROUPS; i += SLICES) {
            const int group = i + slice;
            uint32_t words[2][4];
            ExactScale scale[2][2];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                load_words<0>(words[s], stage + (2 * pair + s) * STRIP_BYTES + weights_at(their_half, group, their_row));
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t two = group / 2 ? d[s][r].y : d[s][r].x;
                    scale[s][r].times = half_at(group % 2 ? two >> 16 : two & 0xffff);
                    scale[s][r].plus = -12582912.0f * scale[s][r].times;
                }
            }
            add_tiles<0>(stage + x_at(lane / 8 % 2, group, lane / 16 * 8 + lane % 8), (const float*)(bytes + SCALES + group * SCALES_ROW) + 2 * t, words,
                         scale, acc);
        }
    }

    // Adds the superblocks from begin() to end() up.
    template <class Range>
    __device__ __forceinline__ void sum(const Range& range, float (&acc)[2][TILES][4]) const {
        const uint32_t room = shared_at(strip_room);
        const int begin = 2 * range.begin();
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            if (begin + i < 2 * range.end()) copy_weights(room, i, begin + i);
        // The weights of the first steps are on their way before x is there.
        await_earlier();
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++) {
            if (begin + i < 2 * range.end()) copy_rows_of_x(room, i, begin + i);
            commit_copies();
        }
        int from = 0, to = STAGES - 1;
#pragma unroll 1
        for (int step = begin; step < 2 * range.end(); step++) {
            wait_copies<STAGES - 2>();
            __syncthreads();
            if (step + STAGES - 1 < 2 * range.end()) {
                copy_weights(room, to, step + STAGES - 1);
                copy_rows_of_x(room, to, step + STAGES - 1);
            }
            commit_copies();
            add(strip_room, from, step, acc);
            from = from + 1 == STAGES ? 0 : from + 1;
            to = to + 1 == STAGES ? 0 : to + 1;
        }
    }
};
