// The functions inside feed-forward networks, by the codes that kernels take.
#pragma once
#include "reduce.cuh"

enum Activation { SILU = 0, GELU_ERF = 1, GELU_TANH = 2, RELU = 3, RELU_SQUARED = 4 };

DEVICE float activate(int kind, float x) {
    switch (kind) {
        case SILU: return x / (1.0f + expf(-x));
        case GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
        case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        case RELU: return fmaxf(x, 0.0f);
        default: {
            float r = fmaxf(x, 0.0f);
            return r * r;
        }
    }
}
