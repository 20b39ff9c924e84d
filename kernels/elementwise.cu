// Small operations on rows: activation, addition, gathering, scaling of logits.
//
// activation: rows = f(rows) * up, or f(rows) without up; optionally quantized to (yq, ys) (width a multiple of 32).
// add: rows += scale * delta.
// add_row: rows[r] += row.
// mean_of_sequences: y[s] = the mean of x[seq_starts[s]..seq_starts[s + 1]], zeros where there is none; the grid has n_seqs rows.
// add_positions: rows[t] += table[positions[t]].
// scale_by_position: rows[t] *= 1 + scale * ln(1 + floor((positions[t] + offset) / interval)).
// gather: y[i] = x[rows[i]].
// scale_logits: x = scale * x, then cap * tanh(x / cap) where cap > 0.
// All: grid (ceil(width / 256), n_rows); block 256; rows [n_rows, width] f32. No shared memory. Measured on the simulator only.
#include "activate.cuh"
#include "q8.cuh"

KERNEL __launch_bounds__(256) activation(float* rows, const float* up, int kind, int width, int8_t* yq, Q8Scale* ys) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t at = (size_t)blockIdx.y * width + i;
    float value = activate(kind, rows[at]);
    if (up) value *= other_factor(kind, up[at]);
    rows[at] = value;
    if (yq) quantize_group(value, q8_row(yq, blockIdx.y, width), q8_scales(ys, blockIdx.y, width), i / WARP, width / WARP);
}

KERNEL __launch_bounds__(256) add(float* rows, const float* delta, float scale, int width) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t at = (size_t)blockIdx.y * width + i;
    rows[at] += scale * delta[at];
}

KERNEL __launch_bounds__(256) add_row(float* rows, const float* row, int width) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    rows[(size_t)blockIdx.y * width + i] += row[i];
}

KERNEL __launch_bounds__(256) mean_of_sequences(const float* x, const uint32_t* seq_starts, int width, float* y) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    uint32_t first = seq_starts[blockIdx.y], end = seq_starts[blockIdx.y + 1];
    float sum = 0.0f;
    for (uint32_t t = first; t < end; t++) sum += x[(size_t)t * width + i];
    y[(size_t)blockIdx.y * width + i] = end > first ? sum / (float)(end - first) : 0.0f;
}

// A position of 0xffffffff is padding.
KERNEL __launch_bounds__(256) add_positions(float* rows, const float* table, const uint32_t* positions, int width) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t position = positions[blockIdx.y];
    if (i >= width || position == 0xffffffffu) return;
    rows[(size_t)blockIdx.y * width + i] += table[(size_t)position * width + i];
}

KERNEL __launch_bounds__(256) scale_by_position(float* rows, const uint32_t* positions, float scale, int interval, int offset,
                                                int width) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t position = positions[blockIdx.y];
    if (i >= width || position == 0xffffffffu) return;
    float steps = (float)((position + (uint32_t)offset) / (uint32_t)interval);
    rows[(size_t)blockIdx.y * width + i] *= 1.0f + scale * logf(1.0f + steps);
}

KERNEL __launch_bounds__(256) gather(const float* x, const uint32_t* rows, int width, float* y) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    y[(size_t)blockIdx.y * width + i] = x[(size_t)rows[blockIdx.y] * width + i];
}

KERNEL __launch_bounds__(256) scale_logits(float* x, float scale, float cap, int width) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t at = (size_t)blockIdx.y * width + i;
    float value = scale * x[at];
    x[at] = cap > 0.0f ? cap * tanhf(value / cap) : value;
}
