// K-quants times many rows in f16 on tensor cores: y[m][r] = sum_k w[r][k] x[m][k] + bias[r], and of a gate and up
// y[m][r] = f(gate sum + gate_bias[r]) (up sum + up_bias[r]).
//
// Compiled once a format that comes in strips: -DFORMAT=Q4_K -DHEADER="formats/q4_k.cuh". Up to three matrices of one input are one launch; jobs
// without rows have n_out 0.
//
// | kernel            | rows of w | rows of x | block | grid                                                         |
// |-------------------|-----------|-----------|-------|--------------------------------------------------------------|
// | half_band_n64     | 128       | 64        | 128   | (ceil(n_rows / 64), sum over jobs of ceil(n_out / 128))      |
// | half_split_n64    | 128       | 64        | 128   | as half_band_n64, by the thread blocks that share columns    |
// | half_gated_n64    | 64 of two | 64        | 128   | (ceil(n_rows / 64), ceil(n_out / 64))                        |
//
// Of a split band each thread block adds up `each` superblocks, an even number; `parts` and `counters` as add_parts says.
// Shapes: w as formats/planes.cuh says; x as half_rows.cuh says, [n_rows up to a multiple of 64, n_in]; y [n_rows, n_out] f32, of gated ones also as
// gated.cuh says. Shared: dynamic, `HalfBand::SHARED_BYTES`. Alignment: weights 256 bytes, x 16 bytes. Measured on the simulator only: bench/runs.
#include HEADER
#include "half_bands.cuh"

KERNEL __launch_bounds__(HALF_BAND_THREADS, 1)
    half_band_n64(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2, const float* bias0, const float* bias1,
                  const float* bias2, int n0, int n1, int n2, int n_in, int n_rows, const uint8_t* halves, const uint8_t* sums,
                  const uint8_t* powers) {
    let_next_begin();
    auto pick = [&](int& block) {
        return pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, HALF_BAND_HEIGHT, block);
    };
    multiply_half_band<FORMAT, 8>(pick, {halves, sums, powers}, n_rows, n_in);
}

KERNEL __launch_bounds__(HALF_BAND_THREADS, 1)
    half_split_n64(const uint8_t* w0, const uint8_t* w1, const uint8_t* w2, float* y0, float* y1, float* y2, const float* bias0,
                   const float* bias1, const float* bias2, int n0, int n1, int n2, int n_in, int n_rows, const uint8_t* halves,
                   const uint8_t* sums, const uint8_t* powers, float4* parts, uint32_t* counters, int each) {
    let_next_begin();
    auto pick = [&](int& block) {
        return pick_job({w0, y0, bias0, n0}, {w1, y1, bias1, n1}, {w2, y2, bias2, n2}, HALF_BAND_HEIGHT, block);
    };
    multiply_half_share<FORMAT, 8>(pick, {halves, sums, powers}, n_rows, n_in, parts, counters, each);
}

KERNEL __launch_bounds__(HALF_BAND_THREADS, 1)
    half_gated_n64(const uint8_t* gate, const uint8_t* up, int n_out, const float* gate_bias, const float* up_bias, int activation, float* y,
                   int8_t* yq, Q8Scale* ys, int n_in, int n_rows, const uint8_t* halves, const uint8_t* sums, const uint8_t* powers) {
    let_next_begin();
    multiply_gated_half_band<FORMAT, 8>(gate, up, {n_out, gate_bias, up_bias, activation, y, yq, ys}, {halves, sums, powers}, n_rows, n_in);
}
