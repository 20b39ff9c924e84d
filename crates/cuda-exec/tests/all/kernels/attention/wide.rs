//! Attention of runs by matrix operations of warpgroups: the cases of the other kernels for runs, and combinations of them.
//!
//! This kernel rounds queries and weights to f16, by 2^-11 each. [`Case`] says how that changes the results.

use super::{
    case::{Case, check},
    runs, store_ratios,
};

const DIMS: [usize; 2] = [64, 128];

fn check_all(cases: Vec<Case>) {
    for case in cases {
        check(&Case {
            is_wide: true,
            ..case
        });
    }
}

#[test]
fn warpgroups_attend_to_runs() {
    check_all(runs::plain());
    for dim in DIMS {
        check_all(runs::behind_single_tokens(dim));
    }
}

#[test]
fn warpgroups_have_windows_and_sinks() {
    for dim in DIMS {
        check_all(runs::with_windows_and_sinks(dim));
        let base = || runs::short_and_far(dim);
        check_all(vec![
            Case {
                window: 70,
                has_sinks: true,
                ..base()
            },
            Case {
                window: 64,
                is_chunked: true,
                has_sinks: true,
                ..base()
            },
        ]);
    }
}

#[test]
fn warpgroups_attend_in_both_directions() {
    for dim in DIMS {
        check_all(runs::in_both_directions(dim));
    }
    check_all(vec![Case {
        both: true,
        window: 24,
        has_sinks: true,
        dims: [96, 40],
        ..Case::prefill(&[(0, 90), (0, 130)], 6, 2, 0)
    }]);
}

#[test]
fn warpgroups_read_keys_and_values_once_for_heads_that_share_them() {
    let counters = check(&Case {
        is_wide: true,
        ..Case::prefill(&[(992, 32)], 8, 2, 128)
    });
    let ratios = store_ratios(&counters);
    assert_eq!(ratios.len(), 2);
    assert!(ratios.iter().all(|&ratio| ratio <= 1.05), "{ratios:?}");
}
