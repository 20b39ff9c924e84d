// Quantized matrix times many rows on tensor cores: y[m][r] = sum_k w[r][k] x[m][k] + bias[r], and of a gate and up
// y[m][r] = f(gate sum + gate_bias[r]) (up sum + up_bias[r]).
//
// Compiled once a format: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh" gives matmul_n64 and matmul_n16, and bands too where the format comes in
// strips or in bytes. Up to three matrices of one input are one launch; jobs without rows have n_out 0.
//
// | kernel             | rows of w | rows of x | block | grid                                                    |
// |--------------------|-----------|-----------|-------|---------------------------------------------------------|
// | matmul_n64         | 128       | 64        | 256   | (sum over jobs of ceil(n_out / 128), ceil(n_rows / 64)) |
// | matmul_n16         | 64        | 16        | 128   | (sum over jobs of ceil(n_out / 64), ceil(n_rows / 16))  |
// | matmul_band_nN     | 128       | N         | 128   | (sum over jobs of ceil(n_out / 128), ceil(n_rows / N))  |
// | matmul_split_n64   | 128       | 64        | 128   | as matmul_band_n64, by the thread blocks that share columns |
// | matmul_low_band_nN | 32        | N         | 128   | (sum over jobs of ceil(n_out / 32), ceil(n_rows / N))   |
// | matmul_gated_nN    | 64 of two | N         | 128   | (ceil(n_out / 64), ceil(n_rows / N))                    |
//
// N is 16, 32 or 64, of low bands 16 or 32. Of a split band each thread block adds up `each` superblocks, an even number; `parts` and `counters` as add_parts
// says.
// Shapes: w as formats/planes.cuh says; x quantized as q8.cuh says, [n_rows, n_in]; y [n_rows, n_out] f32, of gated ones also as gated.cuh says.
// Shared: of tiles static, as tiles.cuh says; of bands dynamic, as `Band` says. Alignment: weights 256 bytes, x 16 bytes.
// Measured on the simulator only: bench/runs.
#include HEADER
#include "jobs.cuh"
#include "tiles.cuh"
#ifdef TAKES_STRIPS
#include "bands.cuh"
#define TAKES_BANDS
#endif
#ifdef TAKES_BYTE_BANDS
#include "byte_bands.cuh"
#define TAKES_BANDS
#endif

#define MATMUL(NAME, WARPS, TILES)                                                                              \
    KERNEL __launch_bounds__(WARPS * 32, 1)                                                                     \
        NAME(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,          \
             const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in,      \
             int n_rows, const int8_t* xq, const Q8Scale* xs) {                                                 \
        begin_after_earlier();                                                                                  \
        int block = blockIdx.x;                                                                                 \
        Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, WARPS * 16, block);    \
        TileMatrix matrix = {job.w, (size_t)job.n_out, 0, job.n_out, job.bias};                                 \
        Rows rows = {(int)blockIdx.y * TILES * 8, n_rows};                                                      \
        multiply_tile<FORMAT, WARPS, TILES>(matrix, block, rows, xq, xs, n_in, job.y);                          \
    }

MATMUL(matmul_n64, 8, 8)
MATMUL(matmul_n16, 4, 2)

#ifdef TAKES_BANDS
#define BAND(NAME, TILES, HEIGHT)                                                                                    \
    KERNEL __launch_bounds__(BAND_WARPS * 32, 1)                                                                        \
        NAME(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,                  \
             const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in,              \
             int n_rows, const int8_t* xq, const Q8Scale* xs) {                                                         \
        let_next_begin();                                                                                               \
        const int before = blockIdx.y * TILES * 8;                                                                      \
        int block = blockIdx.x;                                                                                         \
        Job job = pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, HEIGHT, block);               \
        job.y += (size_t)before * job.n_out;                                                                            \
        multiply_band<FORMAT, TILES, HEIGHT>(job, block, q8_row(xq, before, n_in), q8_scales(xs, before, n_in),         \
                                             n_rows - before, n_in);                                                    \
    }
#define SPLIT_BAND(NAME, TILES)                                                                                      \
    KERNEL __launch_bounds__(BAND_WARPS * 32, 1)                                                                        \
        NAME(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2,                  \
             const float* bias0, const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in,              \
             int n_rows, const int8_t* xq, const Q8Scale* xs, float4* parts, uint32_t* counters, int each) {            \
        let_next_begin();                                                                                               \
        auto pick = [&](int& block) {                                                                                   \
            return pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, 128, block);                 \
        };                                                                                                              \
        multiply_share<FORMAT, TILES>(pick, xq, xs, n_rows, n_in, parts, counters, each);                               \
    }
#define GATED_BAND(NAME, TILES)                                                                                      \
    KERNEL __launch_bounds__(BAND_WARPS * 32, 1)                                                                        \
        NAME(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias,           \
             int activation, float* y, int8_t* yq, Q8Scale* ys, int n_in, int n_rows, const int8_t* xq,                 \
             const Q8Scale* xs) {                                                                                       \
        let_next_begin();                                                                                               \
        const int before = blockIdx.y * TILES * 8;                                                                      \
        multiply_gated_band<FORMAT, TILES>(gate, up, {n_out, gate_bias, up_bias, activation, y, yq, ys}, blockIdx.x,    \
                                           before, q8_row(xq, before, n_in), q8_scales(xs, before, n_in),               \
                                           n_rows - before, n_in);                                                      \
    }

BAND(matmul_band_n16, 2, 128)
BAND(matmul_band_n32, 4, 128)
BAND(matmul_band_n64, 8, 128)
SPLIT_BAND(matmul_split_n64, 8)
BAND(matmul_low_band_n16, 2, 32)
BAND(matmul_low_band_n32, 4, 32)
GATED_BAND(matmul_gated_n16, 2)
GATED_BAND(matmul_gated_n32, 4)
GATED_BAND(matmul_gated_n64, 8)
#endif
