// The gated delta rule, token by token.
//
// delta_net: for value head h with key head g, with q and k scaled to length 1 (x / sqrt(sum(x^2) + 1e-6)) and q by 1 / sqrt(dim_k):
//     decay = exp(a[h] * softplus(alpha[h] + dt_bias[h]))      rate = sigmoid(beta[h])
//     S = decay * S;  S = S + k (rate * (v - S^T k))^T;  y[h] = S^T q
// delta_net_channels: the same where each row S[i], a channel of the key, has its own decay: alpha[h][i] and dt_bias[h][i] for alpha[h] and
// dt_bias[h].
//   grid: (n_v_heads * ceil(dim_v / (256 / lanes)), n_seqs); block: 256. A column of S has `lanes` neighbouring lanes, a power of two, each
//   of which keeps 16 of its dim_k values in registers: dim_k <= 16 lanes. A thread block has columns of one head: it scales 8 tokens' q
//   and k at a time, a warp each, into shared memory, where all its columns read them. Decays of channels go there too: of 4 tokens at a
//   time, a warp each for q and k and a warp each for the decays.
//   qkv [n_tokens, 2 n_k_heads dim_k + n_v_heads dim_v] f32; alpha [n_tokens, n_v_heads], of channels [n_tokens, n_v_heads, dim_k]; beta
//   [n_tokens, n_v_heads]; a [n_v_heads]; dt_bias [n_v_heads], of channels [n_v_heads, dim_k]; y [n_tokens, n_v_heads dim_v]; matrices
//   [n_v_heads, dim_v, dim_k] `state_start` floats into each slot. Key heads: grouped h / (n_v / n_k), tiled h % n_k.
// delta_net_chunks: delta_net with 16 tokens at a time where a sequence's step has them; chunks.cuh has the formula. `positions` of the
//   step's tokens; lanes from 2 to 16. Grid, block and arguments otherwise as delta_net.
// delta_net_channels_chunks: the same of delta_net_channels; lanes from 2 to 8.
// Shared: 1 KiB times lanes, dynamic, and 64 bytes; of channels 768 bytes times lanes, and 16 bytes; of chunks
// 4 KiB times lanes and 26 KiB, of chunks with decays of channels 7 KiB times lanes and 26 KiB. Alignment: 4 bytes; states 16 bytes where dim_k is a multiple of 4. Measured on the
// simulator only.
//
// Bytes: a sequence reads and writes its state once a step, 8 n_v_heads dim_k dim_v; that is what limits a decode step, by DRAM, and each
// thread has 64 bytes of it in flight while q and k are scaled. A token moves 4 (2 n_k dim_k + 2 n_v dim_v), q and k once for each thread
// block of a head, from L2. A prompt is limited by the chain from token to token: 7 operations a value and two sums over lanes, some 200
// cycles, of which the last sum overlaps with the next token; the warps of an SM hide it for one another.
#include "chunks.cuh"

constexpr int R = 16, G = R / 4;
constexpr float LOG2_E = 1.44269504f;

// What a thread block computes: some columns of a head of a sequence.
struct Place {
    int head, key_head, first_column;
};

DEVICE Place place_of(int n_k_heads, int n_v_heads, int dim_v, int is_tiled, int lanes) {
    int columns = blockDim.x / lanes, blocks_per_head = (dim_v + columns - 1) / columns, head = blockIdx.x / blocks_per_head;
    int key_head = is_tiled ? head % n_k_heads : head / (n_v_heads / n_k_heads);
    return {head, key_head, (int)(blockIdx.x % blocks_per_head) * columns};
}

// The factor that makes a row of a warp's length 1.
DEVICE float unit_factor(const float* row, int dim, int lane) {
    float squares = 0.0f;
    for (int k = lane; k < dim; k += WARP) squares += row[k] * row[k];
    return 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
}

template <bool OF_CHANNELS>
DEVICE void run_rule(const float* qkv, const float* alpha, const float* beta, int n_k_heads, int n_v_heads, int dim_k, int dim_v,
                     int is_tiled, int lanes, const float* a, const float* dt_bias, const Run& run, float* state, int stride,
                     int state_start, float* y, float* scaled) {
    constexpr int TOKENS = OF_CHANNELS ? 4 : 8, PARTS = OF_CHANNELS ? 3 : 2;
    // [TOKENS][PARTS][R * lanes]: queries, keys, and decays of channels.
    __shared__ float decays[TOKENS], rates[TOKENS];
    Place place = place_of(n_k_heads, n_v_heads, dim_v, is_tiled, lanes);
    int head = place.head, key_head = place.key_head;
    int padded = R * lanes, lane = threadIdx.x % lanes, warp = threadIdx.x / WARP, column = place.first_column + threadIdx.x / lanes;
    bool is_inside = column < dim_v;
    // Lanes behind the last column compute that one and write nothing: the sums need whole warps.
    column = min(column, dim_v - 1);
    int qk_width = n_k_heads * dim_k, qkv_width = 2 * qk_width + n_v_heads * dim_v;
    size_t out_column = (size_t)head * dim_v + column, out_width = (size_t)n_v_heads * dim_v;
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
        int place = warp % TOKENS;
        uint32_t own = at + place;
        bool has_rows = !OF_CHANNELS || warp < TOKENS, has_gates = !OF_CHANNELS || warp >= TOKENS;
        int i = threadIdx.x % WARP;
        float* parts = scaled + PARTS * place * padded;
        if (has_rows && own < run.end) {
            for (int part = 0; part < 2; part++) {
                const float* row = qkv + (size_t)own * qkv_width + part * qk_width + key_head * dim_k;
                float factor = unit_factor(row, dim_k, i);
                if (part == 0) factor *= 1.0f / sqrtf((float)dim_k);
                float* out = parts + part * padded;
                for (int k = i; k < padded; k += WARP) out[k] = k < dim_k ? row[k] * factor : 0.0f;
            }
        }
        if (has_gates && own < run.end) {
            size_t gate = (size_t)own * n_v_heads + head;
            if (OF_CHANNELS) {
                const float *alphas = alpha + gate * dim_k, *biases = dt_bias + (size_t)head * dim_k;
                for (int k = i; k < padded; k += WARP) {
                    parts[2 * padded + k] = k < dim_k ? expf(a[head] * softplus(alphas[k] + biases[k])) : 0.0f;
                }
            }
            if (i == 0) {
                if (!OF_CHANNELS) decays[place] = expf(a[head] * softplus(alpha[gate] + dt_bias[head]));
                rates[place] = 1.0f / (1.0f + expf(-beta[gate]));
            }
        }
        __syncthreads();
        int n = min((uint32_t)TOKENS, run.end - at);
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            uint32_t token = at + i;
            const float4* q = reinterpret_cast<const float4*>(scaled + PARTS * i * padded) + lane;
            const float4* k = reinterpret_cast<const float4*>(scaled + (PARTS * i + 1) * padded) + lane;
            const float4* own_decays = reinterpret_cast<const float4*>(scaled + (PARTS * i + 2) * padded) + lane;
            float v = next_v, decay = OF_CHANNELS ? 0.0f : decays[i], recalled = 0.0f, answer = 0.0f;
            if (token + 1 < run.end) next_v = values[(size_t)(token + 1) * qkv_width];
#pragma unroll
            for (int g = 0; g < G; g++) {
                float4 key = k[g * lanes], d = OF_CHANNELS ? own_decays[g * lanes] : make_float4(decay, decay, decay, decay);
                s[g].x *= d.x, s[g].y *= d.y, s[g].z *= d.z, s[g].w *= d.w;
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

#define RULE(NAME, OF_CHANNELS)                                                                                                   \
    KERNEL __launch_bounds__(256, 2)                                                                                              \
        NAME(const float* qkv, const float* alpha, const float* beta, int n_k_heads, int n_v_heads, int dim_k, int dim_v,         \
             int is_tiled, int lanes, const float* a, const float* dt_bias, const uint32_t* seq_starts, const SeqState* states,   \
             float* state, int stride, int state_start, float* y) {                                                               \
        extern __shared__ __align__(16) float scaled[];                                                                           \
        run_rule<OF_CHANNELS>(qkv, alpha, beta, n_k_heads, n_v_heads, dim_k, dim_v, is_tiled, lanes, a, dt_bias,                  \
                              run_of(seq_starts, states, blockIdx.y), state, stride, state_start, y, scaled);                     \
    }

RULE(delta_net, false)
RULE(delta_net_channels, true)

// The rows of a head, as chunks take them.
struct NetRows {
    // Of the head: queries, keys and values of the first token, in rows of `qkv_width`; gates in rows of `n_v_heads`.
    const float *queries, *keys, *values, *alpha, *beta;
    int qkv_width, n_v_heads, dim_k, dim_v;
    float a, dt_bias;
    // [n_tokens, n_v_heads dim_v], from the head's first column on.
    float* y;

    __device__ __forceinline__ float input(uint32_t token, int column) const { return values[(size_t)token * qkv_width + column]; }
    __device__ __forceinline__ void output(uint32_t token, int column, float answer, float) const {
        y[(size_t)token * n_v_heads * dim_v + column] = answer;
    }
    __device__ __forceinline__ void stage(const ChunkRoom& room, uint32_t first, int warp, int lane) const {
        if (warp == 0) {
            size_t gate = (size_t)(first + lane % CHUNK) * n_v_heads;
            put_decays(room, a * softplus(alpha[gate] + dt_bias), lane);
            if (lane < CHUNK) room.rates()[lane] = 1.0f / (1.0f + expf(-beta[gate]));
        }
        for (int token = warp; token < CHUNK; token += N_WARPS) {
            size_t start = (size_t)(first + token) * qkv_width;
            put_unit(room.queries(), token, queries + start, 1.0f / sqrtf((float)dim_k), lane);
            put_unit(room.keys(), token, keys + start, 1.0f, lane);
        }
    }
    __device__ __forceinline__ void put_unit(const TokenRows& rows, int token, const float* row, float scale, int lane) const {
        // Up to 256 values: four pairs of a lane.
        float pairs[4][2], squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = 2 * (lane + WARP * i);
            pairs[i][0] = k < dim_k ? row[k] : 0.0f, pairs[i][1] = k + 1 < dim_k ? row[k + 1] : 0.0f;
            squares += pairs[i][0] * pairs[i][0] + pairs[i][1] * pairs[i][1];
        }
        float factor = scale / sqrtf(warp_sum(squares) + 1e-6f);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = 2 * (lane + WARP * i);
            if (k < rows.width) rows.put_pair(token, k, pairs[i][0] * factor, pairs[i][1] * factor);
        }
    }
};

// The same where channels have decays: `alpha` of the first token, in rows of n_v_heads dim_k.
struct ChannelNetRows : NetRows {
    const float* dt_biases;

    __device__ __forceinline__ void stage(const ChunkRoom& room, uint32_t first, int warp, int lane) const {
        ChannelRoom own = {room};
        if (warp == 0 && lane < CHUNK) {
            room.rates()[lane] = 1.0f / (1.0f + expf(-beta[(size_t)(first + lane) * n_v_heads]));
            room.decays()[lane] = room.rests()[lane] = 1.0f;
        }
#pragma unroll 1
        for (int token = warp; token < CHUNK; token += N_WARPS) {
            size_t row = first + token;
            put_unit_row(own.query(token), queries + row * qkv_width, 1.0f / sqrtf((float)dim_k), own.width(), lane);
            put_unit_row(own.key(token), keys + row * qkv_width, 1.0f, own.width(), lane);
            const float* alphas = alpha + row * n_v_heads * dim_k;
            for (int k = lane; k < own.width(); k += WARP) {
                // To base 2. Beyond this, nothing is left of a state.
                own.sums(token)[k] = k < dim_k ? fmaxf(LOG2_E * a * softplus(alphas[k] + dt_biases[k]), -150.0f) : 0.0f;
            }
        }
        put_channel_rows(own);
    }
    __device__ __forceinline__ void put_unit_row(float* to, const float* row, float scale, int width, int lane) const {
        float factor = scale * unit_factor(row, dim_k, lane);
        for (int k = lane; k < width; k += WARP) to[k] = k < dim_k ? row[k] * factor : 0.0f;
    }
};

template <bool OF_CHANNELS>
DEVICE void run_rule_in_chunks(const float* qkv, const float* alpha, const float* beta, int n_k_heads, int n_v_heads, int dim_k, int dim_v,
                               int is_tiled, int lanes, const float* a, const float* dt_bias, const uint32_t* seq_starts,
                               const SeqState* states, const uint32_t* positions, float* state, int stride, int state_start, float* y,
                               float* scaled) {
    auto step_by_step = [&](const Run& part) {
        run_rule<OF_CHANNELS>(qkv, alpha, beta, n_k_heads, n_v_heads, dim_k, dim_v, is_tiled, lanes, a, dt_bias, part, state, stride,
                              state_start, y, scaled);
    };
    Run run = run_of(seq_starts, states, blockIdx.y);
    run_sequence(run, chunks_of(run, positions), step_by_step, [&](const Run& part) {
        Place place = place_of(n_k_heads, n_v_heads, dim_v, is_tiled, lanes);
        int head = place.head, qk_width = n_k_heads * dim_k, n_decays = OF_CHANNELS ? dim_k : 1;
        NetRows rows = {qkv + place.key_head * dim_k,
                        qkv + qk_width + place.key_head * dim_k,
                        qkv + 2 * qk_width + head * dim_v,
                        alpha + head * n_decays,
                        beta + head,
                        2 * qk_width + n_v_heads * dim_v,
                        n_v_heads,
                        dim_k,
                        dim_v,
                        a[head],
                        dt_bias[head * n_decays],
                        y + head * dim_v};
        auto matrix = [&](uint32_t slot) {
            return state + (size_t)slot * stride + state_start + (size_t)head * dim_v * dim_k;
        };
        ChunkRoom room = {reinterpret_cast<uint32_t*>(scaled), lanes};
        if constexpr (OF_CHANNELS) {
            ChannelNetRows of_channels = {rows, dt_bias + head * dim_k};
            run_chunks<true, true>(of_channels, matrix, room, part, place.first_column, dim_v, dim_k, lanes);
        } else {
            run_chunks<true, false>(rows, matrix, room, part, place.first_column, dim_v, dim_k, lanes);
        }
    });
}

#define CHUNKS(NAME, OF_CHANNELS, N_BLOCKS)                                                                                       \
    KERNEL __launch_bounds__(256, N_BLOCKS)                                                                                       \
        NAME(const float* qkv, const float* alpha, const float* beta, int n_k_heads, int n_v_heads, int dim_k, int dim_v,         \
             int is_tiled, int lanes, const float* a, const float* dt_bias, const uint32_t* seq_starts, const SeqState* states,   \
             const uint32_t* positions, float* state, int stride, int state_start, float* y) {                                    \
        extern __shared__ __align__(16) float scaled[];                                                                           \
        run_rule_in_chunks<OF_CHANNELS>(qkv, alpha, beta, n_k_heads, n_v_heads, dim_k, dim_v, is_tiled, lanes, a, dt_bias,        \
                                        seq_starts, states, positions, state, stride, state_start, y, scaled);                    \
    }

CHUNKS(delta_net_chunks, false, 2)
// With keys of 128, shared memory has room for one thread block.
CHUNKS(delta_net_channels_chunks, true, 1)
