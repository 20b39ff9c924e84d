// Quantized matrix times many rows by matrix operations of warpgroups, compute capability 9.0 only (compiled for sm_90a): y[m][r] = sum_k w[r][k] x[m][k] + bias[r],
// and of a gate and up y[m][r] = f(gate sum + gate_bias[r]) (up sum + up_bias[r]).
//
// Compiled once a format: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh"; by 256 rows of x only where it comes in strips. Up to three matrices of one input are one launch; jobs without
// rows have n_out 0.
//
// | kernel        | rows of w | rows of x | block | grid                                                           |
// |---------------|-----------|-----------|-------|----------------------------------------------------------------|
// | wide_band_nN  | 128       | N         | 256   | (ceil(n_rows / N), sum over jobs of ceil(n_out / 128), splits) |
// | wide_gated_nN | 64 of two | N         | 256   | (ceil(n_rows / N), ceil(n_out / 64))                            |
//
// N is 16, 32, 64, 128 or 256. A split band has `splits` thread blocks, which add up `each` superblocks each, so splits = ceil(n_in / 256 / each). `parts` is
// [grid.x * grid.y][splits][128 rows * rows of x] f32, `counters` [grid.x * grid.y] u32, 0 before and after; both may be null without splits.
// Shapes: w as formats/planes.cuh says, n_in a multiple of 256; x as wide_rows.cuh says; y [n_rows, n_out] f32, of gated ones also as gated.cuh says.
// Shared: dynamic, `WideShape::SHARED_BYTES` (stages of N * 128 bytes and 1024). Alignment: weights 256 bytes, x 16 bytes. Measured on the simulator only.
#include HEADER
#include "wide.cuh"

#define WIDE_KERNELS(N)                                                                                                                                \
    KERNEL __launch_bounds__(WIDE_THREADS, WideShape<N>::BLOCKS)                                                                                       \
        wide_band_n##N(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2, const float* bias0,                   \
                       const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in, int n_rows, const uint8_t* tiles,                     \
                       const float* powers, float4* parts, uint32_t* counters, int each) {                                                             \
        let_next_begin();                                                                                                                              \
        auto pick = [&](int& band) { return pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, WIDE_HEIGHT, band); };             \
        multiply_wide_band<FORMAT, N>(pick, n_in, n_rows, tiles, powers, parts, counters, each);                                                       \
    }                                                                                                                                                  \
    KERNEL __launch_bounds__(WIDE_THREADS, WideShape<N>::BLOCKS)                                                                                       \
        wide_gated_n##N(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias, int activation, float* y,     \
                        int8_t* yq, Q8Scale* ys, int n_in, int n_rows, const uint8_t* tiles, const float* powers) {                                    \
        let_next_begin();                                                                                                                              \
        multiply_wide_gated<FORMAT, N>(gate, up, {n_out, gate_bias, up_bias, activation, y, yq, ys}, n_in, n_rows, tiles, powers);                     \
    }

WIDE_KERNELS(16)
WIDE_KERNELS(32)
WIDE_KERNELS(64)
WIDE_KERNELS(128)
#ifdef TAKES_STRIPS
WIDE_KERNELS(256)
#endif
