// IQ2_S: on the device it lies as IQ2_XXS does.
#pragma once
#include "iq2_xxs.cuh"

using IQ2_S = IQ2_XXS;
