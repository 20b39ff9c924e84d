// The functions inside feed-forward networks, by the codes that kernels take.
#pragma once
#include "reduce.cuh"

enum Activation {
    SILU = 0,
    GELU_ERF = 1,
    GELU_TANH = 2,
    RELU = 3,
    RELU_SQUARED = 4,
    SIGMOID = 5,
    IDENTITY = 6,
    CLIPPED_SWIGLU = 7
};

DEVICE float activate(int kind, float x) {
    switch (kind) {
        case SILU: return x / (1.0f + expf(-x));
        case GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
        case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        case RELU: return fmaxf(x, 0.0f);
        case SIGMOID: return 1.0f / (1.0f + expf(-x));
        case IDENTITY: return x;
        case CLIPPED_SWIGLU: {
            float clipped = x > 7.0f ? 7.0f : x;
            return clipped / (1.0f + expf(-1.702f * clipped));
        }
        default: {
            float r = fmaxf(x, 0.0f);
            return r * r;
        }
    }
}

// What the activation of a gate is multiplied with.
DEVICE float other_factor(int kind, float up) {
    if (kind != CLIPPED_SWIGLU) return up;
    float clipped = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
    return clipped + 1.0f;
}
