// F32, F16 or BF16 matrices of experts times the f32 rows that go to them: y[c][r] = sum_k w[e(c)][r][k] x[c][k] + bias[e(c)][r].
//
// Compiled once a format: -DFORMAT=F16 gives experts_m1, _m2, _m4, _m8, _n16, _n64.
//
// experts_mM  grid: (ceil(n_out / 8), runs, 1 or 2 matrices of one input); block: 128. A warp computes 2 rows for up to M choices.
// experts_n16, _n64  grid: (ceil(n_out / 64), runs, 1 or 2); block: 256. 64 rows for up to 16 or 64 choices (tiles_float.cuh).
// Shapes: w [n_experts * n_out, n_in] with rows padded to 16 bytes (formats/float.cuh); x f32, a row for each row of the step where
// `rows` is given, else one for each choice; y [n_choices, n_out] f32; runs and starts as route.cu writes them, or matrices of heads
// (experts.cuh), whose grid has n_experts * ceil(n_head_rows / M) runs.
// Alignment: weights 16 bytes; x too where n_in is a multiple of 4. Shared: none, of tiles
// as tiles_float.cuh says. Measured on the simulator only.
#include "experts.cuh"
#include "matvec_float.cuh"
#include "tiles_float.cuh"

template <int M>
struct ChosenRows {
    const float* values;
    int n_in;
    int index[M];

    __device__ __forceinline__ int row(int m) const { return index[m]; }
};

template <class F, int M>
DEVICE void experts(const ExpertJob& job, int n_experts, int n_head_rows, int n_out, int n_in, const uint2* runs,
                    const uint32_t* starts, const uint32_t* rows, const float* values) {
    Run run;
    if (!find_run<M>(runs, starts, n_experts, n_head_rows, run)) return;
    int row = (blockIdx.x * (int)(blockDim.x / WARP) + (int)threadIdx.x / WARP) * ROWS;
    if (row >= n_out) return;
    ChosenRows<M> x = {values, n_in};
#pragma unroll
    for (int m = 0; m < M; m++) x.index[m] = row_of(run, rows, m);
    const size_t chunks = (n_in + F::LEN - 1) / F::LEN;
    const uint4* w = (const uint4*)job.w + (size_t)run.expert * n_out * chunks;
    const uint4* const both[ROWS] = {w + row * chunks, w + min(row + 1, n_out - 1) * chunks};
    float acc[ROWS][M] = {};
    dot_rows<F, M>(both, x, acc);
    write_choices<M>(job, run, row, n_out, acc);
}

template <class F, int N>
DEVICE void tiled_experts(const ExpertJob& job, int n_experts, int n_head_rows, int n_out, int n_in, const uint2* runs,
                          const uint32_t* starts, const uint32_t* rows, const float* values) {
    Run run;
    if (!find_run<16 * N>(runs, starts, n_experts, n_head_rows, run)) return;
    const size_t chunks = (n_in + F::LEN - 1) / F::LEN, first = (size_t)run.expert * n_out;
    const uint4* w = (const uint4*)job.w + first * chunks;
    ChosenTile x = {run, rows};
    multiply_tile<F, N>(w, job.bias ? job.bias + first : nullptr, n_out, blockIdx.x, x, values, n_in, job.y);
}

#define EXPERTS(NAME, THREADS, ...)                                                                                        \
    KERNEL __launch_bounds__(THREADS, 1)                                                                                   \
        experts_##NAME(const uint8_t* w0, const uint8_t* w1, const float* bias0, const float* bias1, float* y0, float* y1,   \
                     int n_experts, int n_head_rows, int n_out, int n_in, const uint2* runs, const uint32_t* starts,       \
                     const uint32_t* rows, const float* x) {                                                               \
        begin_after_earlier();                                                                                             \
        ExpertJob job = {w0, bias0, y0};                                                                                   \
        if (blockIdx.z == 1) job = {w1, bias1, y1};                                                                        \
        __VA_ARGS__(job, n_experts, n_head_rows, n_out, n_in, runs, starts, rows, x);                                      \
    }

EXPERTS(m1, 128, experts<FORMAT, 1>)
EXPERTS(m2, 128, experts<FORMAT, 2>)
EXPERTS(m4, 128, experts<FORMAT, 4>)
EXPERTS(m8, 128, experts<FORMAT, 8>)
EXPERTS(n16, 256, tiled_experts<FORMAT, 1>)
EXPERTS(n64, 256, tiled_experts<FORMAT, 4>)
