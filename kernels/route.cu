// Which experts each row goes to, the rows of each expert, and the sum of what experts gave.
//
// route_rows    s = softmax(l) or sigmoid(l); the n_used largest of s + choice_bias, of equal ones the first, within the best groups
//               where there are groups; weights scale * expert_scales * s, divided by their sum where normalized.
//               grid: n_rows; block: 32. logits [n_rows, n_experts] f32; experts, weights [n_rows, n_used], best first.
// sort_choices  sorts the choices by expert, those of an expert by row. grid: 1; block: 1024. places [n_choices]: where each choice
//               comes to stand; rows [n_choices]: the row of each sorted choice; starts [n_experts + 1]; runs [n_runs]: expert and first
//               sorted choice of each run of up to run_len choices, NO_RUN behind the last.
// combine       out[r] = carried + sum_i weights[r][i] * choices[places[r][i]], in the order of i. grid: (ceil(width / 256), n_rows);
//               block: 256. carry 0: nothing, 1: out[r], 2: out[r] * sigmoid(gate[r]).
// Up to 1024 experts. Shared: 12 KiB, 8 KiB, none. Measured on the simulator only.
#include "experts.cuh"

constexpr int MAX_EXPERTS = 1024;
constexpr uint32_t OUT = 0, CHOSEN = 0xffffffffu;

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
            // Chosen groups are marked behind all others until the search is over.
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

KERNEL __launch_bounds__(1024)
    sort_choices(const uint32_t* experts, int n_choices, int n_used, int n_experts, int run_len, int n_runs, uint32_t* places,
                 uint32_t* rows, uint32_t* starts, uint2* runs) {
    __shared__ uint32_t first[MAX_EXPERTS];
    __shared__ uint32_t first_run[MAX_EXPERTS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    for (int expert = warp; expert < n_experts; expert += n_warps) {
        uint32_t count = 0;
        for (int at = 0; at < n_choices; at += WARP) {
            bool is_own = at + lane < n_choices && experts[at + lane] == (uint32_t)expert;
            count += __popc(__ballot_sync(FULL_WARP, is_own));
        }
        if (lane == 0) first[expert] = count;
    }
    __syncthreads();
    // Counts become starts: a lane adds up neighbouring experts, the warp adds up lanes.
    if (warp == 0) {
        int n_each = (n_experts + WARP - 1) / WARP, begin = min(lane * n_each, n_experts), end = min(begin + n_each, n_experts);
        uint32_t own = 0, own_runs = 0;
        for (int e = begin; e < end; e++) own += first[e], own_runs += (first[e] + run_len - 1) / run_len;
        uint32_t before = 0, runs_before = 0;
        for (int other = 0; other < WARP; other++) {
            uint32_t count = __shfl_sync(FULL_WARP, own, other), count_runs = __shfl_sync(FULL_WARP, own_runs, other);
            if (other < lane) before += count, runs_before += count_runs;
        }
        for (int e = begin; e < end; e++) {
            uint32_t count = first[e];
            first[e] = before, first_run[e] = runs_before;
            before += count, runs_before += (count + run_len - 1) / run_len;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i <= n_experts; i += blockDim.x) starts[i] = i < n_experts ? first[i] : n_choices;
    int end_of_runs = 0;
    for (int expert = warp; expert < n_experts; expert += n_warps) {
        uint32_t next = first[expert];
        uint32_t end = expert + 1 < n_experts ? first[expert + 1] : n_choices;
        if (next == end) continue;
        for (uint32_t run = lane; next + run * run_len < end; run += WARP) {
            runs[first_run[expert] + run] = make_uint2(expert, next + run * run_len);
        }
        for (int at = 0; at < n_choices; at += WARP) {
            bool is_own = at + lane < n_choices && experts[at + lane] == (uint32_t)expert;
            uint32_t own = __ballot_sync(FULL_WARP, is_own);
            if (is_own) {
                uint32_t place = next + __popc(own & ((1u << lane) - 1));
                places[at + lane] = place;
                rows[place] = (at + lane) / n_used;
            }
            next += __popc(own);
        }
    }
    // Behind the last expert's runs there are none.
    uint32_t last = n_experts - 1, last_count = n_choices - first[last];
    end_of_runs = first_run[last] + (last_count + run_len - 1) / run_len;
    for (int run = end_of_runs + threadIdx.x; run < n_runs; run += blockDim.x) runs[run] = make_uint2(NO_RUN, 0);
}

KERNEL __launch_bounds__(256)
    combine(const float* choices, const float* weights, const uint32_t* places, int n_used, int width, int carry, const float* gates,
            float* out) {
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
