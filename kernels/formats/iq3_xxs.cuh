// IQ3_XXS: SuperNibbles with odd scales; 3 bits and the sign. A weight is d / 4 * scale * table[q]. The grid of the file was looked up
// when the planes were written.
#pragma once
#include "codebook.cuh"

struct IQ3_XXS : SuperNibbles {
    __device__ __forceinline__ IQ3_XXS(const uint8_t* w, size_t n_groups) : SuperNibbles(w, n_groups) {}
    DEVICE void words(const Raw& raw, int (&v)[8]) {
        // -62, -52, -44 .. -4, 4 .. 44, 52, 62.
        look_up(raw.q, make_uint4(0xdcd4ccc2u, 0xfcf4ece4u, 0x1c140c04u, 0x3e342c24u), v);
    }
    DEVICE float2 scale(const Raw& raw, int) { return make_float2(0.25f * half_at(raw.d) * raw.scale, 0.0f); }
};
