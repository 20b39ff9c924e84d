// Operations that few networks need: columns of rows, rows joined, and xIELU.
//
// take_columns  y[r] = x[r][first .. first + width]; x [n_rows, row_width] f32.
// join          y[r] = [a[r], b[r]]; a [n_rows, width_a], b [n_rows, width - width_a] f32.
// xielu         rows = x > 0 ? alpha_p x^2 + beta x : alpha_n (exp(min(x, eps)) - 1 - x) + beta x, in place; optionally quantized to
//               (yq, ys) (width a multiple of 32).
// All: grid (ceil(width / 256), n_rows); block 256; rows of `width` f32. No shared memory. Measured on the simulator only.
#include "q8.cuh"

KERNEL __launch_bounds__(256) take_columns(const float* x, int row_width, int first, int width, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    y[(size_t)blockIdx.y * width + i] = x[(size_t)blockIdx.y * row_width + first + i];
}

KERNEL __launch_bounds__(256) join(const float* a, const float* b, int width_a, int width, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t row = blockIdx.y;
    y[row * width + i] = i < width_a ? a[row * width_a + i] : b[row * (width - width_a) + i - width_a];
}

KERNEL __launch_bounds__(256)
    xielu(float* rows, float alpha_p, float alpha_n, float beta, float eps, int width, int8_t* yq, Q8Scale* ys) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t at = (size_t)blockIdx.y * width + i;
    float x = rows[at];
    // A value that is no number goes the second way and stays none: min would drop it.
    float bounded = x > eps ? eps : x;
    float value = x > 0.0f ? alpha_p * x * x + beta * x : (expm1f(bounded) - x) * alpha_n + beta * x;
    rows[at] = value;
    if (yq) quantize_group(value, q8_row(yq, blockIdx.y, width), q8_scales(ys, blockIdx.y, width), i / WARP, width / WARP);
}
