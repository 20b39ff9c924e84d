// TQ1_0: on the device it lies as TQ2_0 does.
#pragma once
#include "tq2_0.cuh"

using TQ1_0 = TQ2_0;
