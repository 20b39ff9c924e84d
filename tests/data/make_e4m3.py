"""Makes vectors/E4M3.safetensors: what ml_dtypes, with which JAX and others round, says of numbers of E4M3 (float8_e4m3fn).

pip install ml_dtypes==0.6.0 numpy safetensors
python make_e4m3.py

`values` [256] F32: the number of each code. `numbers` [3072] F32 and `codes` [3072] U8: random numbers of all sizes, of which none rounds to
more than 448, and their codes: to the nearest, ties to even.
"""

import os

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

E4M3 = ml_dtypes.float8_e4m3fn
rng = np.random.default_rng(8)
values = np.arange(256, dtype=np.uint8).view(E4M3).astype(np.float32)
# -0.0 is no number of its own: what lies between it and the largest is no tie.
finite = values[np.isfinite(values) & ~np.signbit(values)]
assert (np.diff(finite) > 0).all()
halves = (finite[1:] + finite[:-1]) / 2
sizes = 2.0 ** rng.uniform(-14, 9, 2560)
numbers = np.concatenate([rng.choice([-1, 1], 2560) * sizes, rng.normal(size=260), halves, -halves]).astype(np.float32)
numbers = np.clip(numbers, -463.9, 463.9)
assert len(numbers) == 3072
codes = numbers.astype(E4M3).view(np.uint8)
assert np.isfinite(numbers.astype(E4M3).astype(np.float32)).all()
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors")
save_file({"values": values, "numbers": numbers, "codes": codes}, os.path.join(folder, "E4M3.safetensors"))
