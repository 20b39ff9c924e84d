"""Times products and attention of torch in bfloat16 at the shapes of an 8B model: what other programs reach on the same GPU."""

import json
import sys

import torch


def microseconds(run, n_launches=50):
    """Returns the mean of a launch, between two events."""
    for _ in range(5):
        run()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(n_launches):
        run()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) * 1e3 / n_launches


def product(n_rows, n_out, n_in):
    """Rotates over weights that no cache holds."""
    n_copies = max(1, (200 << 20) // (2 * n_out * n_in) + 1)
    weights = [torch.randn(n_out, n_in, dtype=torch.bfloat16, device="cuda") for _ in range(n_copies)]
    rows = torch.randn(n_rows, n_in, dtype=torch.bfloat16, device="cuda")
    index = 0

    def run():
        nonlocal index
        index = (index + 1) % n_copies
        torch.nn.functional.linear(rows, weights[index])

    us = microseconds(run)
    return {"name": f"{n_out} x {n_in} by {n_rows}, bf16", "us": us, "flops_per_s": 2e6 * n_rows * n_out * n_in / us}


def attention(n_tokens, n_heads=32, n_kv_heads=8, width=128):
    """Attends from a whole prompt."""
    queries = torch.randn(1, n_heads, n_tokens, width, dtype=torch.bfloat16, device="cuda")
    keys, values = (
        torch.randn(1, n_kv_heads, n_tokens, width, dtype=torch.bfloat16, device="cuda").repeat_interleave(n_heads // n_kv_heads, 1)
        for _ in range(2)
    )
    us = microseconds(lambda: torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True))
    return {"name": f"attention of a prompt of {n_tokens}, bf16", "us": us}


rows = [product(n_rows, n_out, n_in) for n_rows in (1, 16, 64, 512) for n_out, n_in in ((4096, 4096), (14336, 4096))]
rows += [attention(512), attention(4096)]
with open(sys.argv[1], "w", encoding="utf-8") as file:
    print(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1), file=file)
