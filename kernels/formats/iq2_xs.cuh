// IQ2_XS: on the device it lies as IQ2_XXS does.
#pragma once
#include "iq2_xxs.cuh"

using IQ2_XS = IQ2_XXS;
