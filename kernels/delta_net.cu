// The gated delta rule, token by token.
//
// delta_net: for value head h with key head g, with q and k scaled to length 1 (x / sqrt(sum(x^2) + 1e-6)) and q by 1 / sqrt(dim_k):
//     decay = exp(a[h] * softplus(alpha[h] + dt_bias[h]))      rate = sigmoid(beta[h])
//     S = decay * S;  S = S + k (rate * (v - S^T k))^T;  y[h] = S^T q
//   grid: (n_v_heads * ceil(dim_v / (256 / lanes)), n_seqs); block: 256. A column of S has `lanes` neighbouring lanes, a power of two, each
//   of which keeps 16 of its dim_k values in registers: dim_k <= 16 lanes. A thread block has columns of one head: it scales 8 tokens' q
//   and k at a time, a warp each, into shared memory, where all its columns read them.
//   qkv [n_tokens, 2 n_k_heads dim_k + n_v_heads dim_v] f32; alpha, beta [n_tokens, n_v_heads]; a, dt_bias [n_v_heads]; y [n_tokens,
//   n_v_heads dim_v]; matrices [n_v_heads, dim_v, dim_k] `state_start` floats into each slot. Key heads: grouped h / (n_v / n_k), tiled h % n_k.
// Shared: 1 KiB times lanes, dynamic, and 64 bytes. Alignment: 4 bytes; states 16 bytes where dim_k is a multiple of 4. Measured on the
// simulator only.
//
// Bytes: a sequence reads and writes its state once a step, 8 n_v_heads dim_k dim_v; that is what limits a decode step, by DRAM, and each
// thread has 64 bytes of it in flight while q and k are scaled. A token moves 4 (2 n_k dim_k + 2 n_v dim_v), q and k once for each thread
// block of a head, from L2. A prompt is limited by the chain from token to token: 7 operations a value and two sums over lanes, some 200
// cycles, of which the last sum overlaps with the next token; the warps of an SM hide it for one another.
#include "states.cuh"

constexpr int R = 16, G = R / 4, TOKENS = 8;

KERNEL __launch_bounds__(256, 2)
    delta_net(const float* qkv, const float* alpha, const float* beta, int n_k_heads, int n_v_heads, int dim_k, int dim_v, int is_tiled,
              int lanes, const float* a, const float* dt_bias, const uint32_t* seq_starts, const SeqState* states, float* state,
              int stride, int state_start, float* y) {
    // [TOKENS][2][R * lanes]: queries and keys.
    extern __shared__ __align__(16) float scaled[];
    __shared__ float decays[TOKENS], rates[TOKENS];
    int columns = blockDim.x / lanes, blocks_per_head = (dim_v + columns - 1) / columns, padded = R * lanes;
    int head = blockIdx.x / blocks_per_head, lane = threadIdx.x % lanes, warp = threadIdx.x / WARP;
    int column = blockIdx.x % blocks_per_head * columns + threadIdx.x / lanes;
    bool is_inside = column < dim_v;
    // Lanes behind the last column compute that one and write nothing: the sums need whole warps.
    column = min(column, dim_v - 1);
    int key_head = is_tiled ? head % n_k_heads : head / (n_v_heads / n_k_heads);
    int qk_width = n_k_heads * dim_k, qkv_width = 2 * qk_width + n_v_heads * dim_v;
    size_t out_column = (size_t)head * dim_v + column, out_width = (size_t)n_v_heads * dim_v;
    Run run = run_of(seq_starts, states, blockIdx.y);
    if (run.first == run.end) {
        if (is_inside && lane == 0) y[blockIdx.y * out_width + out_column] = 0.0f;
        return;
    }
    bool is_aligned = dim_k % 4 == 0;
    auto matrix = [&](uint32_t slot) { return state + (size_t)slot * stride + state_start + out_column * dim_k; };
    auto keep = [&](const float4 (&s)[G], uint32_t slot) {
        if (!is_inside) return;
#pragma unroll
        for (int g = 0; g < G; g++) put_four(matrix(slot), 4 * (g * lanes + lane), dim_k, is_aligned, s[g]);
    };
    float4 s[G];
#pragma unroll
    for (int g = 0; g < G; g++) {
        bool has_past = is_inside && run.slots.from != NO_SLOT;
        s[g] = has_past ? four_at(matrix(run.slots.from), 4 * (g * lanes + lane), dim_k, is_aligned) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    const float* values = qkv + 2 * qk_width + out_column;
    float next_v = values[(size_t)run.first * qkv_width];
    for (uint32_t at = run.first; at < run.end; at += TOKENS) {
        __syncthreads();
        uint32_t own = at + warp;
        if (own < run.end) {
            int i = threadIdx.x % WARP;
            for (int part = 0; part < 2; part++) {
                const float* row = qkv + (size_t)own * qkv_width + part * qk_width + key_head * dim_k;
                float squares = 0.0f;
                for (int k = i; k < dim_k; k += WARP) squares += row[k] * row[k];
                float factor = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
                if (part == 0) factor *= 1.0f / sqrtf((float)dim_k);
                float* out = scaled + (2 * warp + part) * padded;
                for (int k = i; k < padded; k += WARP) out[k] = k < dim_k ? row[k] * factor : 0.0f;
            }
            if (i == 0) {
                size_t gate = (size_t)own * n_v_heads + head;
                decays[warp] = expf(a[head] * softplus(alpha[gate] + dt_bias[head]));
                rates[warp] = 1.0f / (1.0f + expf(-beta[gate]));
            }
        }
        __syncthreads();
        int n = min((uint32_t)TOKENS, run.end - at);
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            uint32_t token = at + i;
            const float4* q = reinterpret_cast<const float4*>(scaled + 2 * i * padded) + lane;
            const float4* k = reinterpret_cast<const float4*>(scaled + (2 * i + 1) * padded) + lane;
            float v = next_v, decay = decays[i], recalled = 0.0f, answer = 0.0f;
            if (token + 1 < run.end) next_v = values[(size_t)(token + 1) * qkv_width];
#pragma unroll
            for (int g = 0; g < G; g++) {
                float4 key = k[g * lanes];
                s[g].x *= decay, s[g].y *= decay, s[g].z *= decay, s[g].w *= decay;
                recalled += s[g].x * key.x + s[g].y * key.y + s[g].z * key.z + s[g].w * key.w;
            }
            float change = rates[i] * (v - lanes_sum(recalled, lanes));
#pragma unroll
            for (int g = 0; g < G; g++) {
                float4 key = k[g * lanes], query = q[g * lanes];
                s[g].x += key.x * change, s[g].y += key.y * change, s[g].z += key.z * change, s[g].w += key.w * change;
                answer += s[g].x * query.x + s[g].y * query.y + s[g].z * query.z + s[g].w * query.w;
            }
            answer = lanes_sum(answer, lanes);
            if (is_inside && lane == 0) y[token * out_width + out_column] = answer;
            if (token == run.slots.save_after) keep(s, run.slots.save);
        }
    }
    keep(s, run.slots.to);
}
