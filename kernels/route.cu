// Which experts each row goes to, the rows of each expert, and the sum of what experts gave.
//
// route_rows    s = softmax(l) or sigmoid(l); the n_used largest of s + choice_bias, of equal ones the first, within the best groups
//               where there are groups; weights scale * expert_scales * s, with s divided by the sum of the chosen s where normalized.
//               grid: n_rows; block: 32. logits [n_rows, n_experts] f32; experts, weights [n_rows, n_used], best first.
// sort_choices  sorts the choices by expert, those of an expert by row. grid: ceil(n_experts / 8); block: 256. Each thread block counts
//               the choices of all experts; then a warp places those of one expert. places [n_choices]: where each choice comes to
//               stand; rows [n_choices]: the row of each sorted choice; starts [n_experts + 1]; runs [n_runs]: expert and first sorted
//               choice of each run of up to run_len choices, NO_RUN behind the last.
// weigh_choices choices[places[c]] *= weights[c], in place, for each choice c. grid: (ceil(width / 256), n_choices); block: 256.
// combine       out[r] = carried + sum_i weights[r][i] * choices[places[r][i]], in the order of i. grid: (ceil(width / 256), n_rows);
//               block: 256. carry 0: nothing, 1: out[r], 2: out[r] * sigmoid(gate[r]).
// Up to 1024 experts. Shared: 12 KiB, 4 KiB, none, none. Measured on the simulator only.
#include "experts.cuh"

constexpr int MAX_EXPERTS = 1024;
constexpr uint32_t OUT = 0;  // the key of what cannot be chosen any more, behind that of every number

// The largest of n keys, of equal ones the first, and its index. All lanes of a warp get it.
DEVICE int best_key(const uint32_t* keys, int n) {
    uint64_t best = 0;
    for (int i = threadIdx.x; i < n; i += WARP) {
        uint64_t key = (uint64_t)keys[i] << 32 | (uint32_t)(MAX_EXPERTS - i);
        best = key > best ? key : best;
    }
    best = warp_max(best);
    return MAX_EXPERTS - (int)(uint32_t)best;
}

KERNEL __launch_bounds__(32)
    route_rows(const float* logits, int n_experts, int n_used, int is_sigmoid, const float* choice_bias, int n_groups,
               int n_used_groups, int takes_two, int is_normalized, float scale, const float* expert_scales, uint32_t* experts,
               float* weights) {
    begin_after_earlier();
    __shared__ float scores[MAX_EXPERTS];
    __shared__ uint32_t keys[MAX_EXPERTS];
    __shared__ uint32_t group_keys[MAX_EXPERTS];
    int lane = threadIdx.x;
    const float* own = logits + (size_t)blockIdx.x * n_experts;
    float peak = __uint_as_float(0xff800000u), sum = 0.0f;
    if (!is_sigmoid) {
        for (int i = lane; i < n_experts; i += WARP) peak = fmaxf(peak, own[i]);
        peak = warp_max(peak);
        for (int i = lane; i < n_experts; i += WARP) sum += expf(own[i] - peak);
        sum = warp_sum(sum);
    }
    for (int i = lane; i < n_experts; i += WARP) {
        float score = is_sigmoid ? 1.0f / (1.0f + expf(-own[i])) : expf(own[i] - peak) / sum;
        scores[i] = score;
        keys[i] = ordered_bits(choice_bias ? score + choice_bias[i] : score);
    }
    __syncwarp();
    if (n_groups > 1) {
        int len = n_experts / n_groups;
        for (int group = lane; group < n_groups; group += WARP) {
            uint32_t first = 0, second = 0;
            for (int i = 0; i < len; i++) {
                uint32_t key = keys[group * len + i];
                second = key > first ? first : key > second ? key : second;
                first = key > first ? key : first;
            }
            float measure = from_ordered_bits(first);
            if (takes_two && len > 1) measure += from_ordered_bits(second);
            group_keys[group] = ordered_bits(measure);
        }
        __syncwarp();
        for (int i = 0; i < n_used_groups; i++) {
            // A chosen group is OUT for the rest of the search, and by that known afterwards.
            int group = best_key(group_keys, n_groups);
            __syncwarp();
            if (lane == 0) group_keys[group] = OUT;
            __syncwarp();
        }
        for (int i = lane; i < n_experts; i += WARP) {
            if (group_keys[i / len] != OUT) keys[i] = OUT;
        }
        __syncwarp();
    }
    uint32_t* chosen = experts + (size_t)blockIdx.x * n_used;
    float* out = weights + (size_t)blockIdx.x * n_used;
    float total = 0.0f;
    for (int i = 0; i < n_used; i++) {
        int expert = min(best_key(keys, n_experts), n_experts - 1);
        float score = scores[expert];
        total += score;
        __syncwarp();
        if (lane == 0) {
            keys[expert] = OUT;
            chosen[i] = expert;
            out[i] = expert_scales ? scale * expert_scales[expert] * score : scale * score;
        }
        __syncwarp();
    }
    if (is_normalized && lane == 0) {
        for (int i = 0; i < n_used; i++) out[i] /= total + 1e-20f;
    }
}

DEVICE uint32_t warp_sum(uint32_t x) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m /= 2) x += __shfl_xor_sync(FULL_WARP, x, m);
    return x;
}

KERNEL __launch_bounds__(256)
    sort_choices(const uint32_t* experts, int n_choices, int n_used, int n_experts, int run_len, int n_runs, uint32_t* places,
                 uint32_t* rows, uint32_t* starts, uint2* runs) {
    begin_after_earlier();
    __shared__ uint32_t counts[MAX_EXPERTS];
    int lane = threadIdx.x % WARP, expert = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    for (int i = threadIdx.x; i < n_experts; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (int at = threadIdx.x; at < n_choices; at += blockDim.x) atomicAdd(&counts[experts[at]], 1u);
    __syncthreads();
    if (expert >= n_experts) return;
    // Choices, and runs, of the experts before this one.
    uint32_t first = 0, first_run = 0;
    for (int i = lane; i < expert; i += WARP) first += counts[i], first_run += (counts[i] + run_len - 1) / run_len;
    first = warp_sum(first), first_run = warp_sum(first_run);
    uint32_t end = first + counts[expert], end_run = first_run + (counts[expert] + run_len - 1) / run_len;
    if (lane == 0) starts[expert] = first;
    for (uint32_t run = first_run + lane; run < end_run; run += WARP) {
        runs[run] = make_uint2(expert, first + (run - first_run) * run_len);
    }
    if (expert == n_experts - 1) {
        if (lane == 0) starts[n_experts] = n_choices;
        for (uint32_t run = end_run + lane; run < n_runs; run += WARP) runs[run] = make_uint2(NO_RUN, 0);
    }
#pragma unroll 4
    for (int base = 0; base < n_choices && first < end; base += WARP) {
        int at = base + lane;
        bool is_own = at < n_choices && experts[at] == (uint32_t)expert;
        uint32_t own = __ballot_sync(FULL_WARP, is_own);
        if (is_own) {
            uint32_t place = first + __popc(own & ((1u << lane) - 1));
            places[at] = place;
            rows[place] = at / n_used;
        }
        first += __popc(own);
    }
}

KERNEL __launch_bounds__(256) weigh_choices(float* choices, const float* weights, const uint32_t* places, int width) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width) choices[(size_t)places[blockIdx.y] * width + i] *= weights[blockIdx.y];
}

KERNEL __launch_bounds__(256)
    combine(const float* choices, const float* weights, const uint32_t* places, int n_used, int width, int carry, const float* gates,
            float* out) {
    begin_after_earlier();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width) return;
    size_t row = blockIdx.y, at = row * width + i;
    float sum = carry == 0 ? 0.0f : out[at];
    if (carry == 2) sum *= 1.0f / (1.0f + expf(-gates[row]));
    for (int rank = 0; rank < n_used; rank++) {
        size_t choice = row * n_used + rank;
        sum += weights[choice] * choices[(size_t)places[choice] * width + i];
    }
    out[at] = sum;
}
