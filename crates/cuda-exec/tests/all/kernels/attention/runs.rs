//! Runs of tokens, without caps and slopes, that every kernel for f16 stores takes. The kernels of tensor cores and
//! those of warpgroups are launched on the same ones.

use super::case::Case;

/// Runs of all lengths, groupings of heads, and heads that are narrower than the kernels' columns.
pub(super) fn plain() -> Vec<Case> {
    let mut cases = vec![
        Case::prefill(&[(0, 1)], 1, 1, 64),
        Case::prefill(&[(0, 70), (5, 3), (130, 64)], 4, 2, 64),
        Case::prefill(&[(0, 17), (100, 90)], 2, 1, 128),
    ];
    // Heads that share a KV head are rows of one tile, which may end within a token.
    for (n_heads, n_kv_heads) in [(8, 2), (7, 1), (9, 3), (40, 2)] {
        cases.push(Case::prefill(
            &[(0, 33), (60, 1), (20, 50)],
            n_heads,
            n_kv_heads,
            64,
        ));
    }
    cases.push(Case::prefill(&[(30, 140)], 1, 1, 32));
    for (dims, run, n_kv_heads) in [
        ([80, 72], (3, 40), 2),
        ([4, 12], (60, 10), 1),
        ([9, 7], (5, 20), 1),
    ] {
        cases.push(Case {
            dims,
            ..Case::prefill(&[run], 2, n_kv_heads, 0)
        });
    }
    cases
}

/// Returns a run that begins a sequence, and one that is far from its beginning.
pub(super) fn short_and_far(dim: usize) -> Case {
    Case::prefill(&[(0, 30), (200, 70)], 4, 1, dim)
}

/// Windows that slide or are consecutive, sinks, and a run that is padding.
pub(super) fn with_windows_and_sinks(dim: usize) -> Vec<Case> {
    let base = || short_and_far(dim);
    let windows = [(20, false), (1, true), (24, true), (100, true), (100, false)];
    let mut cases: Vec<Case> = (windows.into_iter())
        .map(|(window, is_chunked)| Case {
            window,
            is_chunked,
            ..base()
        })
        .collect();
    cases.push(Case {
        has_sinks: true,
        ..base()
    });
    let mut padded = base();
    padded.positions[..30].fill(None);
    cases.push(padded);
    cases
}

/// Runs that see later tokens too, all or as far as a window.
pub(super) fn in_both_directions(dim: usize) -> Vec<Case> {
    let of = |window, runs: &[(u32, u32)]| Case {
        window,
        both: true,
        ..Case::prefill(runs, 4, 2, dim)
    };
    [0, 1, 9, 100]
        .into_iter()
        .flat_map(|window| [of(window, &[(0, 1), (0, 70), (0, 3)]), of(window, &[(0, 300)])])
        .collect()
}

/// Runs after sequences of one token, whose contexts another kernel splits.
pub(super) fn behind_single_tokens(dim: usize) -> Vec<Case> {
    let base = || Case {
        n_leading_single: 2,
        ..Case::prefill(&[(40, 1), (300, 1), (0, 70), (130, 64)], 4, 2, dim)
    };
    let with_window = Case {
        window: 30,
        has_sinks: true,
        ..base()
    };
    vec![base(), with_window]
}
