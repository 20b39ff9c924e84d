// IQ3_S: SuperNibbles with odd scales; 3 bits and the sign. A weight is d * scale * (2 q - 15). The grid of the file was looked up when
// the planes were written.
#pragma once
#include "codebook.cuh"

struct IQ3_S : SuperNibbles {
    __device__ __forceinline__ IQ3_S(const uint8_t* w, size_t n_groups) : SuperNibbles(w, n_groups) {}
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        nibbles(raw.q, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = minus_bytes(v[j] << 1, 0x0f0f0f0f);
    }
    DEVICE float2 scale(const Raw& raw, int) { return make_float2(half_at(raw.d) * raw.scale, 0.0f); }
};
