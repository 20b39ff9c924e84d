// F32, F16 or BF16 matrix times 1 to 8 rows of f32: what the kernels of one input and those of experts share.
//
// A lane takes every 32nd 16-byte chunk of its rows, 2 at a time: four loads in flight. Sums are in one order whatever M, the number
// of rows of x that a kernel is compiled for, is. Weights as formats/float.cuh says.
#pragma once
#include "formats/float.cuh"

constexpr int ROWS = 2;      // rows of a warp that share the loads of x
constexpr int JOB_ROWS = 8;  // rows of a thread block
constexpr int RUN = 4;       // values of one load of x

template <int M>
struct Input {
    const float* values;
    int n_rows, n_in;

    // Rows beyond the last repeat it; their sums are not stored.
    __device__ __forceinline__ int row(int m) const { return min(m, n_rows - 1); }
};

// Values first .. first + 3 of a row, zeros beyond its end.
template <bool IS_WHOLE>
DEVICE void load_run(const float* x, int first, int n_in, bool is_aligned, float* v) {
    if (IS_WHOLE || (is_aligned && first + RUN <= n_in)) {
        float4 four = load_written((const float4*)(x + first));
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
#pragma unroll
        for (int j = 0; j < RUN; j++) v[j] = first + j < n_in ? x[first + j] : 0.0f;
    }
}

// Of two neighbours' chunks of 8 weights, the even lane gets the first halves of both and the odd one the second: then each of
// their two loads of x asks for a whole sector, which they would otherwise ask for twice.
DEVICE uint4 exchange_halves(uint4 q, int lane) {
    bool is_odd = lane % 2 == 1;
    uint32_t a = __shfl_xor_sync(FULL_WARP, is_odd ? q.x : q.z, 1);
    uint32_t b = __shfl_xor_sync(FULL_WARP, is_odd ? q.y : q.w, 1);
    return is_odd ? make_uint4(a, b, q.z, q.w) : make_uint4(q.x, q.y, a, b);
}

// Chunks in flight of each row.
template <int M>
constexpr int UNROLL = M <= 4 ? 2 : 1;

// Adds what a warp's next chunks of two rows contribute. IS_WHOLE: all of them have LEN values, and runs of x are aligned.
template <class F, int M, bool IS_WHOLE, class X>
DEVICE void add_chunks(const uint4* const (&rows)[ROWS], int first, const X& x, float (&acc)[ROWS][M]) {
    constexpr int RUNS = F::LEN / RUN;
    const int chunks = (x.n_in + F::LEN - 1) / F::LEN, lane = threadIdx.x % WARP;
    const bool is_aligned = IS_WHOLE || x.n_in % RUN == 0;
    uint4 raw[UNROLL<M>][ROWS];
#pragma unroll
    for (int u = 0; u < UNROLL<M>; u++) {
        int chunk = first + WARP * u + lane;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            raw[u][r] = IS_WHOLE || chunk < chunks ? __ldg(rows[r] + chunk) : make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL<M>; u++) {
        if (!IS_WHOLE && first + WARP * u >= chunks) continue;
        int chunk = first + WARP * u + lane;
        // Where the lane's first run of values is; a second one is a chunk further.
        int column = RUNS == 2 ? (chunk - lane % 2) * F::LEN + lane % 2 * RUN : chunk * F::LEN;
        float weights[ROWS][F::LEN];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (RUNS == 2) raw[u][r] = exchange_halves(raw[u][r], lane);
            F::values(raw[u][r], weights[r]);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            const float* values = x.values + (size_t)x.row(m) * x.n_in;
            float v[F::LEN];
#pragma unroll
            for (int run = 0; run < RUNS; run++) {
                load_run<IS_WHOLE>(values, column + run * F::LEN, x.n_in, is_aligned, v + RUN * run);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int j = 0; j < F::LEN; j++) acc[r][m] += weights[r][j] * v[j];
        }
    }
}

// Sums of two rows with M inputs. All lanes of a warp come here together.
template <class F, int M, class X>
DEVICE void dot_rows(const uint4* const (&rows)[ROWS], const X& x, float (&acc)[ROWS][M]) {
    constexpr int STEP = WARP * UNROLL<M>;
    const int whole = x.n_in % RUN == 0 ? x.n_in / F::LEN / STEP * STEP : 0;
    int first = 0;
#pragma unroll 1
    for (; first < whole; first += STEP) add_chunks<F, M, true>(rows, first, x, acc);
#pragma unroll 1
    for (; first * F::LEN < x.n_in; first += STEP) add_chunks<F, M, false>(rows, first, x, acc);
    warp_sums(acc);
}
