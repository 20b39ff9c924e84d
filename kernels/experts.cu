// Quantized matrices of experts times the rows that go to them: y[c][r] = sum_k w[e(c)][r][k] x[c][k] + bias[e(c)][r].
//
// Compiled once a format: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh" gives experts_m1, _m2, _m4, _m8, _n16, _n64.
//
// experts_mM  grid: (ceil(n_out / 8), runs, 1 or 2 matrices of one input); block: 128. A warp computes 2 rows for up to M choices.
// experts_n16 grid: (ceil(n_out / 64), runs, 1 or 2); block: 128. 64 rows for up to 16 choices, on tensor cores (tiles.cuh).
// experts_n64 grid: (ceil(n_out / 128), runs, 1 or 2); block: 256. 128 rows for up to 64 choices.
// Shapes: w [n_experts * n_out, n_in] as formats/planes.cuh says; x quantized as q8.cuh says, a row for each row of the step where
// `rows` is given, else one for each choice; y [n_choices, n_out] f32; runs and starts as route.cu writes them, or matrices of heads
// (experts.cuh), whose grid has n_experts * ceil(n_head_rows / M) runs.
// Alignment: weights 256 bytes, x and y 16 bytes. Shared: none, of tiles as tiles.cuh says. Measured on the simulator only.
#include HEADER
#include "experts.cuh"
#include "matvec.cuh"
#include "tiles.cuh"

template <int M>
struct ChosenRows {
    const int8_t* bytes;
    const Q8Scale* scales;
    int n_in;
    int index[M];

    __device__ __forceinline__ int row(int m) const { return index[m]; }
};

template <class F, int M>
DEVICE void experts(const ExpertJob& job, int n_experts, int n_head_rows, int n_out, int n_in, const uint2* runs,
                    const uint32_t* starts, const uint32_t* rows, const int8_t* xq, const Q8Scale* xs) {
    Run run;
    if (!find_run<M>(runs, starts, n_experts, n_head_rows, run)) return;
    int row = (blockIdx.x * (int)(blockDim.x / WARP) + (int)threadIdx.x / WARP) * ROWS;
    if (row >= n_out) return;
    ChosenRows<M> x = {xq, xs, n_in};
#pragma unroll
    for (int m = 0; m < M; m++) x.index[m] = row_of(run, rows, m);
    size_t groups = n_in / GROUP, first = (size_t)run.expert * n_out;
    F f(job.w, (size_t)n_experts * n_out * groups);
    const F both[ROWS] = {f, f};
    const size_t base[ROWS] = {(first + row) * groups, (first + min(row + 1, n_out - 1)) * groups};
    float acc[ROWS][M] = {};
    dot_rows<F, M, ROWS>(both, base, x, acc);
    write_choices<M>(job, run, row, n_out, acc);
}

template <class F, int WARPS, int TILES>
DEVICE void tiled_experts(const ExpertJob& job, int n_experts, int n_head_rows, int n_out, int n_in, const uint2* runs,
                          const uint32_t* starts, const uint32_t* rows, const int8_t* xq, const Q8Scale* xs) {
    Run run;
    if (!find_run<TILES * 8>(runs, starts, n_experts, n_head_rows, run)) return;
    size_t first = (size_t)run.expert * n_out;
    TileMatrix matrix = {job.w, (size_t)n_experts * n_out, first, n_out, job.bias ? job.bias + first : nullptr};
    ChosenTile x = {run, rows};
    multiply_tile<F, WARPS, TILES>(matrix, blockIdx.x, x, xq, xs, n_in, job.y);
}

#define EXPERTS(NAME, THREADS, ...)                                                                                        \
    KERNEL __launch_bounds__(THREADS, 1)                                                                                   \
        experts_##NAME(const uint8_t* w0, const uint8_t* w1, const float* bias0, const float* bias1, float* y0, float* y1,   \
                     int n_experts, int n_head_rows, int n_out, int n_in, const uint2* runs, const uint32_t* starts,       \
                     const uint32_t* rows, const int8_t* xq, const Q8Scale* xs) {                                          \
        begin_after_earlier();                                                                                             \
        ExpertJob job = {w0, bias0, y0};                                                                                   \
        if (blockIdx.z == 1) job = {w1, bias1, y1};                                                                        \
        __VA_ARGS__(job, n_experts, n_head_rows, n_out, n_in, runs, starts, rows, xq, xs);                                 \
    }

EXPERTS(m1, 128, experts<FORMAT, 1>)
EXPERTS(m2, 128, experts<FORMAT, 2>)
EXPERTS(m4, 128, experts<FORMAT, 4>)
EXPERTS(m8, 128, experts<FORMAT, 8>)
EXPERTS(n16, 128, tiled_experts<FORMAT, 4, 2>)
EXPERTS(n64, 256, tiled_experts<FORMAT, 8, 8>)
