// IQ4_XS: SuperNibbles with signed scales. A weight is d * scale * table[q].
#pragma once
#include "codebook.cuh"

struct IQ4_XS : SuperNibbles {
    __device__ __forceinline__ IQ4_XS(const uint8_t* w, size_t n_groups) : SuperNibbles(w, n_groups) {}
    DEVICE void words(const Raw& raw, int (&v)[8]) { look_up(raw.q, iq4_table(), v); }
    DEVICE float2 scale(const Raw& raw, int) { return make_float2(half_at(raw.d) * (int8_t)raw.scale, 0.0f); }
};
