//! Paged attention against the plain formula.

mod case;
mod extremes;
mod runs;
mod wide;

use case::{Case, check};
use tokenmill_backend::KvType;
use tokenmill_cuda_exec::KvStore;
use tokenmill_ptx_sim::Counters;

use crate::grid::pairs;

/// Types of keys and values that have kernels of single tokens compiled only for them.
const SINGLE_TYPES: [KvType; 3] = [KvType::F16, KvType::F32, KvType::E4M3];

/// Returns whether a store can have heads of these widths.
fn fits(ty: KvType, dims: [usize; 2]) -> bool {
    ty != KvType::E4M3 || dims.iter().all(|dim| dim.is_multiple_of(16))
}

#[test]
fn contexts_of_any_length_from_one_to_many_splits() {
    check(&Case::new(&[0, 1, 15, 16, 63, 64, 255, 256, 257, 700], 4, 2, 64));
    // Splits of several pages a warp, up to the longest, and more splits than a warp adds up at once.
    for ty in SINGLE_TYPES {
        for (split_bits, n_stages) in [(2, 2), (2, 4), (0, 4)] {
            check(&Case {
                ty,
                split_bits,
                n_stages,
                ..Case::new(&[40, 600, 1100], 4, 2, 64)
            });
        }
    }
    check(&Case {
        split_bits: 6,
        has_sinks: true,
        ..Case::new(&[64 * 64 - 1], 2, 1, 32)
    });
    let longest = Case::new(&[70 * 512], 1, 1, 8);
    check(&Case {
        split_bits: 0,
        ..longest
    });
}

#[test]
fn every_grouping_of_heads() {
    for (n_heads, n_kv_heads) in [(1, 1), (2, 2), (4, 2), (6, 2), (8, 2), (8, 1), (14, 2), (20, 2)] {
        for ty in [KvType::F16, KvType::E4M3] {
            check(&Case {
                ty,
                ..Case::new(&[37, 300], n_heads, n_kv_heads, 32)
            });
        }
    }
}

#[test]
fn heads_of_any_width_in_either_type() {
    for dims in [
        [8, 8],
        [4, 12],
        [80, 72],
        [128, 128],
        [96, 256],
        [64, 48],
        [32, 64],
        [240, 192],
    ] {
        for ty in SINGLE_TYPES.into_iter().filter(|ty| fits(*ty, dims)) {
            check(&Case {
                dims,
                ty,
                ..Case::new(&[20, 290], 4, 2, 0)
            });
        }
    }
}

#[test]
fn heads_wider_than_what_a_warp_loads_at_once() {
    for (dims, n_heads) in [
        ([512, 512], 8),
        ([264, 520], 2),
        ([1024, 1024], 2),
        ([272, 528], 2),
    ] {
        for ty in SINGLE_TYPES.into_iter().filter(|ty| fits(*ty, dims)) {
            check(&Case {
                dims,
                ty,
                quantizes: dims[1] % 32 == 0,
                ..Case::new(&[5, 290], n_heads, 1, 0)
            });
        }
    }
}

#[test]
fn values_may_be_the_beginnings_of_keys() {
    for (dims, n_heads) in [([37, 21], 4), ([96, 80], 1), ([576, 512], 6)] {
        for ty in SINGLE_TYPES.into_iter().filter(|ty| fits(*ty, dims)) {
            check(&Case {
                dims,
                ty,
                in_keys: true,
                ..Case::new(&[0, 300], n_heads, 1, 0)
            });
        }
    }
}

#[test]
fn windows_caps_sinks_and_quantized_output() {
    for ty in [KvType::F16, KvType::E4M3] {
        check_windows_and_what_is_in_a_score(ty);
    }
}

fn check_windows_and_what_is_in_a_score(ty: KvType) {
    let base = || Case {
        ty,
        ..Case::new(&[3, 90, 600], 4, 2, 64)
    };
    check(&Case { window: 50, ..base() });
    check(&Case {
        window: 300,
        ..base()
    });
    for window in [1, 64, 300] {
        check(&Case {
            window,
            is_chunked: true,
            ..base()
        });
    }
    check(&Case { cap: 0.5, ..base() });
    check(&Case {
        has_sinks: true,
        ..base()
    });
    check(&Case {
        has_slopes: true,
        cap: 2.0,
        ..base()
    });
    check(&Case {
        quantizes: true,
        ..base()
    });
}

#[test]
fn padding_costs_nothing_and_yields_zeros() {
    let base = Case::new(&[40, 40, 280], 4, 2, 64);
    check(&Case {
        positions: vec![None, Some(40), None],
        quantizes: true,
        ..base
    });
}

#[test]
fn tokens_of_one_sequence_share_its_pages() {
    let base = Case::new(&[10, 11, 12, 300, 301], 4, 2, 32);
    check(&Case {
        seq_of: vec![0, 0, 0, 1, 1],
        ..base
    });
}

#[test]
fn runs_of_tokens_attend_like_single_ones() {
    for case in runs::plain() {
        check(&case);
    }
}

#[test]
fn runs_of_tokens_have_windows_caps_and_sinks() {
    for case in runs::with_windows_and_sinks(64) {
        check(&case);
    }
    let base = || runs::short_and_far(64);
    check(&Case { cap: 0.5, ..base() });
    check(&Case {
        has_slopes: true,
        ..base()
    });
}

#[test]
fn single_tokens_in_front_of_runs_are_left_out() {
    for case in runs::behind_single_tokens(64) {
        check(&case);
    }
}

/// Keys and values of every type, and every pair of types except f16 for both.
fn pairs_of_types() -> impl Iterator<Item = [KvType; 2]> {
    let pairs = (KvType::ALL.into_iter()).flat_map(|keys| KvType::ALL.map(|values| [keys, values]));
    pairs.filter(|types| *types != [KvType::F16; 2] && KvStore::takes(*types))
}

#[test]
fn runs_of_wide_heads_attend_like_single_ones() {
    for dim in [192, 256] {
        check(&Case::prefill(&[(0, 1)], 1, 1, dim));
        check(&Case::prefill(&[(0, 40), (130, 21), (60, 1)], 4, 2, dim));
        // A tile of 64 rows that ends within a token.
        check(&Case::prefill(&[(20, 33)], 7, 1, dim));
    }
    for dims in [[192, 128], [129, 131], [136, 256], [248, 72]] {
        check(&Case {
            dims,
            ..Case::prefill(&[(3, 40), (70, 5)], 2, 1, 0)
        });
    }
}

#[test]
fn runs_of_wide_heads_have_windows_caps_and_sinks() {
    let base = || Case::prefill(&[(0, 30), (200, 40)], 4, 1, 256);
    for (window, is_chunked) in [(20, false), (100, false), (24, true)] {
        check(&Case {
            window,
            is_chunked,
            ..base()
        });
    }
    check(&Case {
        cap: 0.5,
        has_sinks: true,
        ..base()
    });
    check(&Case {
        both: true,
        has_slopes: true,
        ..Case::prefill(&[(0, 90), (0, 3)], 4, 1, 256)
    });
    let mut padded = base();
    padded.positions[..30].fill(None);
    check(&padded);
}

#[test]
fn runs_attend_to_keys_and_values_of_every_type() {
    let shapes = || {
        let mut shapes = vec![
            Case::prefill(&[(0, 1)], 1, 1, 64),
            Case::prefill(&[(0, 70), (5, 3), (130, 64)], 4, 2, 64),
            Case::prefill(&[(0, 17), (100, 50)], 7, 1, 128),
            Case::prefill(&[(0, 40), (40, 21), (60, 1)], 4, 2, 256),
        ];
        shapes.extend([[32, 96], [160, 32], [192, 128]].map(|dims| Case {
            dims,
            ..Case::prefill(&[(3, 40)], 2, 2, 0)
        }));
        let windows = [(20, false, 128), (24, true, 64), (100, false, 256)];
        shapes.extend(windows.map(|(window, is_chunked, dim)| Case {
            window,
            is_chunked,
            cap: 0.5,
            has_sinks: true,
            ..Case::prefill(&[(0, 30), (200, 40)], 4, 1, dim)
        }));
        shapes.push(Case {
            both: true,
            has_slopes: true,
            ..Case::prefill(&[(0, 90)], 2, 1, 64)
        });
        let mut padded = Case::prefill(&[(0, 30), (20, 40)], 4, 2, 128);
        padded.positions[..30].fill(None);
        shapes.push(padded);
        shapes
    };
    let all = pairs_of_types().flat_map(|types| (0..shapes().len()).map(move |shape| (types, shape)));
    for (types, shape) in pairs("runs of tokens of every type", all) {
        check(&Case {
            prefill: Some(types),
            ..shapes().swap_remove(shape)
        });
    }
    for dims in [[80, 72], [4, 12], [9, 7], [129, 200]] {
        let any_width = |types: &[KvType; 2]| types.iter().all(|ty| matches!(ty, KvType::F16 | KvType::F32));
        for types in pairs_of_types().filter(any_width) {
            check(&Case {
                dims,
                prefill: Some(types),
                ..Case::prefill(&[(5, 20)], 2, 1, 0)
            });
        }
    }
}

#[test]
fn both_kernels_attend_in_both_directions() {
    let n_cases = runs::in_both_directions(64).len();
    let all = (0..n_cases).flat_map(|case| [true, false].map(|is_prefill| (case, is_prefill)));
    for (case, is_prefill) in pairs("attention in both directions", all) {
        let case = runs::in_both_directions(64).swap_remove(case);
        if is_prefill {
            check(&case);
        } else {
            check(&Case {
                prefill: None,
                ty: KvType::F32,
                ..case
            });
        }
    }
}

#[test]
fn runs_of_tokens_have_no_bank_conflicts_in_their_loop() {
    let halves = [128, 192, 256].map(|dim| ([KvType::F16; 2], dim));
    let others = pairs_of_types().flat_map(|types| [64, 128, 256].map(|dim| (types, dim)));
    let others = pairs("bank conflicts of runs", others);
    for (types, dim) in halves.into_iter().chain(others) {
        let counters = check(&Case {
            prefill: Some(types),
            ..Case::prefill(&[(448, 64)], 2, 1, dim)
        });
        let share = counters.bank_conflicts() as f64 / counters.shared.wavefronts as f64;
        // Copies of bytes fill two rows of 64 at once, whose last and first banks are the same; e4m3 has little other
        // traffic.
        let limit = match (dim, types) {
            (64, [KvType::E4M3, _]) => 0.11,
            (64, [KvType::Q8_0, _] | [_, KvType::Q8_0]) => 0.06,
            _ => 0.02,
        };
        assert!(share < limit, "{types:?} {dim}: {share}");
    }
}

/// Returns the requested sectors of keys and of values, relative to those that exist.
fn store_ratios(counters: &Counters) -> Vec<f64> {
    (counters.buffers.values())
        .filter(|buffer| buffer.unique_loaded_sectors > 10_000)
        .map(|buffer| buffer.loaded_sectors as f64 / buffer.unique_loaded_sectors as f64)
        .collect()
}

#[test]
fn heads_of_a_run_that_share_keys_and_values_read_them_once() {
    let counters = check(&Case::prefill(&[(992, 32)], 8, 2, 128));
    let ratios = store_ratios(&counters);
    assert_eq!(ratios.len(), 2);
    assert!(ratios.iter().all(|&ratio| ratio <= 1.05), "{ratios:?}");
    // Queries and results are read and written in whole sectors too.
    assert_eq!(counters.loads.sectors, counters.loads.necessary_sectors);
    assert_eq!(counters.stores.sectors, counters.stores.necessary_sectors);
}

#[test]
fn keys_and_values_are_read_once_and_without_waste() {
    let counters = check(&Case::new(&[1023], 8, 2, 128));
    let ratios = store_ratios(&counters);
    assert_eq!(ratios.len(), 2);
    assert!(ratios.iter().all(|&ratio| ratio <= 1.05), "{ratios:?}");
    // Only the stores of scores, four a page, have conflicts.
    assert!(counters.bank_conflicts() * 40 <= counters.shared.wavefronts);
}
