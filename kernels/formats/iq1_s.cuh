// IQ1_S: on the device it lies as IQ1_M does.
#pragma once
#include "iq1_m.cuh"

using IQ1_S = IQ1_M;
