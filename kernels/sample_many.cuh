// Draws among more tokens than the parts of a row keep: top-p, min-p or temperature alone, and top-k above FEW.
//
// A row's weights are relative to its best logit, which no part knows by itself. So all parts look at their logits twice more:
//   weigh_part: adds weights and counts of its tokens to buckets of the row, by how far a logit is below the best, a sixteenth each;
//   race_part: looks up in which buckets the filters cut the row. Tokens above all cuts race at once, those in a bucket with a cut go to the
//   row's list, others are out.
// draw_many then cuts the list to the token and lets what is left of it race with the winners of the parts. A filter keeps the same tokens as by
// `draw`, which takes the whole row in one thread block and is left for rows with more than LIST tokens in the buckets of their cuts: weights
// are integers, and a bucket is an interval of ranks.
#pragma once
#include "sampling.cuh"

constexpr int BUCKETS = 512;
constexpr float BUCKETS_OF_ONE = 16.0f;  // by which logits may differ; what is 32 below the best has no weight
constexpr int LIST = 4096;

// In which buckets a row is cut. Lower buckets have likelier tokens.
struct Cuts {
    int first;             // tokens of buckets before it stay
    int last;              // the bucket with top-p's cut is among first .. last
    int of_k;              // the bucket with top-k's cut; BUCKETS where there is none
    uint32_t before_k;     // tokens of the buckets before it
    uint64_t weight_of_k;  // their weight; of all where there is no such bucket
    uint64_t reached;      // weight of the buckets before the first
};

// What the launches leave each other of a row with such a draw.
struct __align__(8) Many {
    uint64_t weights[BUCKETS];
    uint64_t winners[MOST_PARTS];
    uint64_t list[LIST];
    uint32_t counts[BUCKETS];
    Cuts cuts;
    uint32_t n_listed, padding;
};
static_assert(sizeof(Many) == 8 * 4997, "as sample.rs allocates it");

DEVICE bool draws_many(const SampleRow& p, int n) { return !(p.flags & (GREEDY | RAW)) && !keeps_few(p, n); }
DEVICE bool has_top_k(const SampleRow& p, int n) { return p.top_k > 0 && p.top_k < (uint32_t)n; }
DEVICE bool is_cut(const SampleRow& p, int n) { return has_top_k(p, n) || p.top_p < 1.0f; }

// Buckets follow the order of ranks, since a difference is rounded in one direction. Anything but a number at or below `max` is in the last.
DEVICE int bucket_of(float logit, float max) {
    float distance = (max - logit) * BUCKETS_OF_ONE;
    return distance < (float)(BUCKETS - 1) ? (int)distance : BUCKETS - 1;
}

DEVICE uint64_t target_of(float top_p, uint64_t sum) {
    uint64_t target = (uint64_t)ceil((double)top_p * (double)sum);
    return target > 0 ? target : 1;
}

// A token's place in the race.
DEVICE uint64_t raced(float logit, float max, uint64_t key, int id, const SampleRow& p) {
    float score = (logit - max) / p.temperature - ln(exponential(key, id));
    return best_rank(score, id);
}

// Clears what the launches behind add to; by the threads of the row's first part.
DEVICE void clear_many(Many& many) {
    for (int i = threadIdx.x; i < BUCKETS; i += PART_THREADS) many.weights[i] = 0, many.counts[i] = 0;
    if (threadIdx.x == 0) many.n_listed = 0;
}

// The best logit of a row by its parts, for a thread block of PART_THREADS.
DEVICE float max_of_parts(const Part* parts, int n_parts, uint64_t* reduce) {
    static_assert(MOST_PARTS <= PART_THREADS, "a part to each thread");
    uint64_t best = block_max(threadIdx.x < n_parts ? parts[threadIdx.x].best : 0, reduce);
    return from_ordered_bits((uint32_t)(best >> 32));
}

// The thread's logits of a part; negative infinity beyond the row.
DEVICE void load_part(const float* row, uint32_t first, uint32_t end, float (&logits)[PART / PART_THREADS]) {
#pragma unroll
    for (int k = 0; k < PART / PART_THREADS; k++) {
        uint32_t i = first + threadIdx.x + k * PART_THREADS;
        logits[k] = i < end ? row[i] : -INFINITY;
    }
}

struct WeighShared {
    uint64_t reduce[PART_THREADS / WARP];
    uint64_t weights[BUCKETS];
    uint32_t counts[BUCKETS];
};

DEVICE void weigh_part(const float* row, uint32_t first, uint32_t end, const Part* parts, int n_parts, Many& many, WeighShared& s) {
    constexpr int KEYS = PART / PART_THREADS;
    float logits[KEYS];
    load_part(row, first, end, logits);
    for (int i = threadIdx.x; i < BUCKETS; i += PART_THREADS) s.weights[i] = 0, s.counts[i] = 0;
    // Its barriers are between the zeros and the sums.
    float max = max_of_parts(parts, n_parts, s.reduce);
    if (!(max > -INFINITY && max < INFINITY)) return;
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        if (!(logits[k] > -INFINITY)) continue;
        int bucket = bucket_of(logits[k], max);
        uint64_t weight = fixed_weight(logits[k], max);
        atomicAdd(&s.counts[bucket], 1u);
        if (weight) atomicAdd((unsigned long long*)&s.weights[bucket], (unsigned long long)weight);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BUCKETS; i += PART_THREADS) {
        if (s.counts[i] == 0) continue;
        atomicAdd(&many.counts[i], s.counts[i]);
        if (s.weights[i]) atomicAdd((unsigned long long*)&many.weights[i], (unsigned long long)s.weights[i]);
    }
}

struct RaceShared {
    uint64_t reduce[PART_THREADS / WARP];
    uint64_t weights[BUCKETS];  // of all buckets up to each
    uint32_t counts[BUCKETS];
    uint32_t n_here, base;
    uint64_t list[PART];
};

// The first bucket whose sum with those before it reaches a target; `otherwise` where none does. All threads have it.
template <class T>
DEVICE int first_reaching(const T* sums, T target, int otherwise) {
    int low = 0, high = BUCKETS;
    while (low < high) {
        int middle = (low + high) / 2;
        if (sums[middle] >= target) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low < BUCKETS ? low : otherwise;
}

// Where the row is cut, from its buckets. Leaves sums of the buckets up to each in shared memory.
DEVICE Cuts find_cuts(const Many& many, const SampleRow& p, int n, RaceShared& s) {
    constexpr int EACH = BUCKETS / PART_THREADS;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, at = threadIdx.x * EACH;
    uint64_t weight[EACH];
    uint32_t count[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) weight[i] = many.weights[at + i], count[i] = many.counts[at + i];
#pragma unroll
    for (int i = 1; i < EACH; i++) weight[i] += weight[i - 1], count[i] += count[i - 1];
    uint64_t weight_before = weight[EACH - 1];
    uint32_t count_before = count[EACH - 1];
#pragma unroll
    for (int m = 1; m < WARP; m *= 2) {
        uint64_t other_weight = __shfl_up_sync(FULL_WARP, weight_before, m);
        uint32_t other_count = __shfl_up_sync(FULL_WARP, count_before, m);
        if (lane >= m) weight_before += other_weight, count_before += other_count;
    }
    if (lane == WARP - 1) s.reduce[warp] = weight_before, s.list[warp] = count_before;
    weight_before -= weight[EACH - 1], count_before -= count[EACH - 1];
    __syncthreads();
    for (int i = 0; i < warp; i++) weight_before += s.reduce[i], count_before += (uint32_t)s.list[i];
#pragma unroll
    for (int i = 0; i < EACH; i++) s.weights[at + i] = weight[i] + weight_before, s.counts[at + i] = count[i] + count_before;
    __syncthreads();
    Cuts cuts = {BUCKETS, BUCKETS, BUCKETS, 0, s.weights[BUCKETS - 1], 0};
    uint64_t most = s.weights[BUCKETS - 1];
    if (has_top_k(p, n)) {
        cuts.of_k = first_reaching(s.counts, p.top_k, BUCKETS);
        if (cuts.of_k < BUCKETS) {
            most = s.weights[cuts.of_k];
            cuts.before_k = cuts.of_k > 0 ? s.counts[cuts.of_k - 1] : 0;
            cuts.weight_of_k = cuts.of_k > 0 ? s.weights[cuts.of_k - 1] : 0;
        }
        cuts.first = cuts.last = cuts.of_k;
    }
    if (p.top_p < 1.0f) {
        // The sum that top-p is a share of lies between these two: it hangs on which tokens of top-k's bucket stay.
        cuts.first = first_reaching(s.weights, target_of(p.top_p, cuts.weight_of_k), BUCKETS - 1);
        cuts.last = first_reaching(s.weights, target_of(p.top_p, most), BUCKETS - 1);
    }
    cuts.reached = cuts.first > 0 ? s.weights[cuts.first - 1] : 0;
    return cuts;
}

DEVICE void race_part(const float* row, uint32_t first, uint32_t end, int n, const Part* parts, int n_parts, const SampleRow& p, Many& many,
                      RaceShared& s) {
    constexpr int KEYS = PART / PART_THREADS;
    float logits[KEYS];
    load_part(row, first, end, logits);
    float max = max_of_parts(parts, n_parts, s.reduce);
    if (!(max > -INFINITY && max < INFINITY)) return;
    Cuts cuts = {BUCKETS, BUCKETS, BUCKETS, 0, 0, 0};
    if (is_cut(p, n)) cuts = find_cuts(many, p, n, s);
    if (blockIdx.x == 0 && threadIdx.x == 0) many.cuts = cuts;
    if (threadIdx.x == 0) s.n_here = 0;
    __syncthreads();
    float threshold = max + p.ln_min_p;
    uint64_t key = mix(mix(p.seed) + p.position), winner = 0;
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        // Forbidden tokens are not candidates.
        if (!(logits[k] > -INFINITY)) continue;
        int id = (int)(first + threadIdx.x + k * PART_THREADS), bucket = bucket_of(logits[k], max);
        if (bucket < cuts.first) {
            if (logits[k] < threshold) continue;
            uint64_t rank = raced(logits[k], max, key, id, p);
            winner = rank > winner ? rank : winner;
        } else if (bucket <= cuts.last || bucket == cuts.of_k) {
            s.list[atomicAdd(&s.n_here, 1u)] = rank_of(logits[k], id);
        }
    }
    winner = block_max(winner, s.reduce);
    if (threadIdx.x == 0) {
        many.winners[blockIdx.x] = winner;
        s.base = s.n_here > 0 ? atomicAdd(&many.n_listed, s.n_here) : 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s.n_here; i += PART_THREADS)
        if (s.base + i < LIST) many.list[s.base + i] = s.list[i];
}

// The lowest rank that stays when ranks at or above `floor` are taken from the top until their weights reach `target`: each
// counts 1, or exp(logit - max) where `is_weighted`.
DEVICE uint64_t select(const float* row, int n, uint64_t floor, bool is_weighted, float max, uint64_t target, Shared& s) {
    uint64_t prefix = 0, reached = 0;
#pragma unroll 1
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) s.weights[threadIdx.x] = 0, s.counts[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += THREADS) {
            uint64_t rank = rank_of(row[i], i);
            bool is_here = shift == 56 || rank >> (shift + 8) == prefix >> (shift + 8);
            if (rank < floor || !is_here) continue;
            int digit = (int)(rank >> shift) & 255;
            atomicAdd(&s.counts[digit], 1u);
            if (is_weighted) {
                uint64_t weight = fixed_weight(row[i], max);
                if (weight) atomicAdd((unsigned long long*)&s.weights[digit], (unsigned long long)weight);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t sum = reached;
            int last = -1, digit = 255;
            for (; digit >= 0; digit--) {
                if (s.counts[digit] == 0) continue;
                last = digit;
                uint64_t weight = is_weighted ? s.weights[digit] : s.counts[digit];
                if (sum + weight >= target) break;
                sum += weight;
            }
            // Where the target is out of reach by rounding, everything stays.
            s.digit = digit >= 0 ? digit : last;
            s.sum = sum;
            s.count = s.digit >= 0 ? s.counts[s.digit] : 0;
        }
        __syncthreads();
        int digit = s.digit;
        reached = s.sum;
        uint32_t count = s.count;
        __syncthreads();
        if (digit < 0) return floor;
        prefix |= (uint64_t)digit << shift;
        if (count == 1) break;
    }
    return prefix > floor ? prefix : floor;
}

DEVICE int draw(const float* row, int n, int best, const SampleRow& p, Shared& s) {
    float max = row[best];
    // Forbidden tokens are not candidates.
    uint64_t floor = rank_of(-INFINITY, 0) + 1;
    if (p.top_k > 0 && p.top_k < (uint32_t)n) {
        uint64_t chosen = select(row, n, 0, false, max, p.top_k, s);
        floor = chosen > floor ? chosen : floor;
    }
    if (p.top_p < 1.0f) {
        uint64_t sum = 0;
#pragma unroll 1
        for (int i = threadIdx.x; i < n; i += THREADS)
            if (rank_of(row[i], i) >= floor) sum += fixed_weight(row[i], max);
        sum = block_sum_u64(sum, s);
        floor = select(row, n, floor, true, max, target_of(p.top_p, sum), s);
    }
    float threshold = max + p.ln_min_p;
    uint64_t key = mix(mix(p.seed) + p.position);
    uint64_t winner = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float logit = row[i];
        if (rank_of(logit, i) < floor || logit < threshold) continue;
        uint64_t rank = raced(logit, max, key, i, p);
        winner = rank > winner ? rank : winner;
    }
    return id_of(block_max(winner, s.reduce));
}

// Sum of the weights of keys at or above a bound, and how many there are, over a thread block. Calls are numbered as for `count_from`, and all
// sums are 0 before the first. A sum is added up in three parts of 22 bits, of which there are at most 32: shared memory adds numbers of
// 32 bits by itself.
template <int KEYS>
DEVICE uint64_t weigh_from(const uint64_t (&keys)[KEYS], const uint64_t (&weights)[KEYS], uint64_t bound, int call, uint32_t& n,
                           Shared& s) {
    constexpr uint64_t PART_BITS = (1 << 22) - 1;
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++) count += __popc(__ballot_sync(FULL_WARP, keys[i] >= bound));
    uint32_t* to = s.sums[call % 3];
    if (count > 0) {
        uint64_t sum = 0;
#pragma unroll
        for (int i = 0; i < KEYS; i++) sum += keys[i] >= bound ? weights[i] : 0;
#pragma unroll
        for (int m = WARP / 2; m > 0; m /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, m);
        if (threadIdx.x % WARP == 0) {
            atomicAdd(&to[0], (uint32_t)(sum & PART_BITS));
            atomicAdd(&to[1], (uint32_t)(sum >> 22 & PART_BITS));
            atomicAdd(&to[2], (uint32_t)(sum >> 44));
            atomicAdd(&to[3], count);
        }
    }
    if (threadIdx.x < 4) s.sums[(call + 1) % 3][threadIdx.x] = 0;
    __syncthreads();
    n = to[3];
    return to[0] + ((uint64_t)to[1] << 22) + ((uint64_t)to[2] << 44);
}

// As `draw`, of a row whose parts have raced and whose list is whole.
DEVICE int draw_many(const Many& many, int n_parts, float max, const SampleRow& p, Shared& s) {
    constexpr int KEYS = LIST / THREADS;
    uint64_t keys[KEYS], winner = threadIdx.x < n_parts ? many.winners[threadIdx.x] : 0;
    const int n_listed = (int)many.n_listed;
    if (n_listed > 0) {
        const Cuts cuts = many.cuts;
        uint64_t highest = 0, opposite = 0;
        uint32_t n_above_k = 0;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            int place = threadIdx.x + i * THREADS;
            keys[i] = place < n_listed ? many.list[place] : 0;
            highest = keys[i] > highest ? keys[i] : highest;
            opposite = keys[i] && ~keys[i] > opposite ? ~keys[i] : opposite;
            n_above_k += keys[i] && bucket_of(logit_of(keys[i]), max) < cuts.of_k;
        }
        highest = block_max(highest, s.reduce);
        uint64_t sum = cuts.weight_of_k, bound = ~block_max(opposite, s.reduce);
        if (cuts.of_k < BUCKETS) {
            uint32_t n_kept = (uint32_t)block_sum_u64(n_above_k, s) + p.top_k - cuts.before_k;
            bound = find_bound(keys, bound, highest, n_kept, n_kept, s.counters);
        }
        if (p.top_p < 1.0f) {
            uint64_t weights[KEYS], of_k = 0;
#pragma unroll
            for (int i = 0; i < KEYS; i++) {
                float logit = logit_of(keys[i]);
                if (keys[i] < bound) keys[i] = 0;
                weights[i] = keys[i] ? fixed_weight(logit, max) : 0;
                if (keys[i] && bucket_of(logit, max) == cuts.of_k) of_k += weights[i];
            }
            if (cuts.of_k < BUCKETS) sum += block_sum_u64(of_k, s);
            if (threadIdx.x < 4) s.sums[0][threadIdx.x] = 0;
            __syncthreads();
            uint64_t wanted = target_of(p.top_p, sum) - cuts.reached, low = bound, high = highest;
            uint32_t n_low = n_listed, n_high = 0;
            // From low on there is as much as is wanted, above high there is not. With one key between, that is the last that stays.
#pragma unroll 1
            for (int call = 0; low < high && n_low > n_high + 1; call++) {
                uint64_t middle = low + (high - low) / 2 + 1;
                uint32_t count;
                if (weigh_from(keys, weights, middle, call, count, s) >= wanted) {
                    low = middle, n_low = count;
                } else {
                    high = middle - 1, n_high = count;
                }
            }
            bound = low;
        }
        float threshold = max + p.ln_min_p;
        uint64_t key = mix(mix(p.seed) + p.position);
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            float logit = logit_of(keys[i]);
            if (!keys[i] || keys[i] < bound || logit < threshold) continue;
            uint64_t rank = raced(logit, max, key, id_of(keys[i]), p);
            winner = rank > winner ? rank : winner;
        }
    }
    return id_of(block_max(winner, s.reduce));
}
