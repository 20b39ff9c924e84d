// How products by matrix operations of warpgroups (wide.cuh) take weights of formats that do not come in strips: by what all formats have, groups of 32
// (formats/planes.cuh). A lane has group t of four of its two rows, as there.
//
// A weight is 1024 times s * q + o: s and o are rounded to f16, q is exact, and so is what both give but for its last rounding. No s is below the normal
// range of f16 and nothing is above its largest number where a matrix fits: `Wide` of `crates/cuda-exec/src/wide.rs` has the limits.
#pragma once
#include "bits.cuh"
#include "formats/planes.cuh"

constexpr float WIDE_TIMES = 1024.0f;

DEVICE uint32_t bits_of(__half2 h) { return *(uint32_t*)&h; }
DEVICE __half2 pair_of(uint32_t bits) { return *(__half2*)&bits; }

template <class F, bool GATED>
struct GroupWeights {
    static constexpr int SUBS = 32 / F::SUB, BUFFERS_OF_FEW = 2;
    // What a lane has of half a superblock in its two rows. All that a superblock has once comes with each of its groups.
    struct Half {
        typename F::Raw raw[2];
    };
    struct Tail {};

    const uint8_t *w, *up;
    size_t n_groups;
    uint32_t groups[2];  // of a lane's rows the first

    // `row_of(r)` is a row of the lane that is there.
    template <class RowOf>
    __device__ __forceinline__ GroupWeights(const uint8_t* w, const uint8_t* up, int n_out, int n_in, const RowOf& row_of)
        : w(w), up(up), n_groups((size_t)n_out * (n_in / GROUP)) {
#pragma unroll
        for (int r = 0; r < 2; r++) groups[r] = row_of(r) * (n_in / GROUP);
    }
    // Half `half` of all halves of a row.
    __device__ __forceinline__ void load(Half& to, int half) const {
#pragma unroll
        for (int r = 0; r < 2; r++) to.raw[r] = F(GATED && r == 1 ? up : w, n_groups).load(groups[r] + half * 4 + threadIdx.x % 4);
    }
    __device__ __forceinline__ void load_tail(Tail&, int) const {}

    // What a lane multiplies the numbers of a group by, of the first and the last 16, and adds.
    struct Factors {
        __half2 scale[2][SUBS], offset[2][SUBS];

        __device__ __forceinline__ Factors(const Half& half, const Tail&, int) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int s = 0; s < SUBS; s++) {
                    const float2 both = F::scale(half.raw[r], s);
                    scale[r][s] = __float2half2_rn(both.x * WIDE_TIMES);
                    if (!F::SIGNED) offset[r][s] = __float2half2_rn(both.y * WIDE_TIMES);
                }
            }
        }
    };

    // Word `j` of a row's group as f16 pairs: numbers of even place and of odd place, `low` of the first 16.
    static __device__ __forceinline__ void unpack(const Half& half, const Factors& factors, int r, int j, uint32_t (&low)[2], uint32_t (&last)[2]) {
        int words[8];
        F::words(half.raw[r], words);
        weights(words[j], factors, r, 0, low);
        weights(words[4 + j], factors, r, SUBS - 1, last);
    }
    static __device__ __forceinline__ void weights(uint32_t word, const Factors& factors, int r, int s, uint32_t (&pairs)[2]) {
        // Bytes behind 1024; signed ones are 128 too large.
        const uint32_t bytes = F::SIGNED ? word ^ 0x80808080u : word;
        const __half2 bias = pair_of(F::SIGNED ? 0x64806480 : 0x64006400);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const __half2 q = __hsub2(pair_of(__byte_perm(bytes, 0x64646464, i == 0 ? 0x4240 : 0x4341)), bias);
            pairs[i] = bits_of(F::SIGNED ? __hmul2(q, factors.scale[r][s]) : __hfma2(q, factors.scale[r][s], factors.offset[r][s]));
        }
    }
};
