// Small operations on rows: activation, addition, gathering, scaling of logits.
//
// activation: rows = f(rows) * up, or f(rows) without up; optionally quantized to (yq, ys) (width a multiple of 32).
// add: rows += scale * delta.
// gather: y[i] = x[rows[i]].
// scale_logits: x = scale * x, then cap * tanh(x / cap) where cap > 0.
// All: grid (ceil(width / 256), n_rows); block 256; rows [n_rows, width] f32. No shared memory. Measured on the simulator only.
#include "activate.cuh"
#include "q8.cuh"

KERNEL __launch_bounds__(256) activation(float* rows, const float* up, int kind, int width, int8_t* yq, Q8Scale* ys) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t at = (size_t)blockIdx.y * width + i;
    float value = activate(kind, rows[at]);
    if (up) value *= up[at];
    rows[at] = value;
    if (yq) quantize_group(value, q8_row(yq, blockIdx.y, width), q8_scales(ys, blockIdx.y, width), i / WARP, width / WARP);
}

KERNEL __launch_bounds__(256) add(float* rows, const float* delta, float scale, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t at = (size_t)blockIdx.y * width + i;
    rows[at] += scale * delta[at];
}

KERNEL __launch_bounds__(256) gather(const float* x, const uint32_t* rows, int width, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    y[(size_t)blockIdx.y * width + i] = x[(size_t)rows[blockIdx.y] * width + i];
}

KERNEL __launch_bounds__(256) scale_logits(float* x, float scale, float cap, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t at = (size_t)blockIdx.y * width + i;
    float value = scale * x[at];
    x[at] = cap > 0.0f ? cap * tanhf(value / cap) : value;
}
