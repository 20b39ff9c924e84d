//! The cases of grids and the rounds of generators that a run tries.

use std::time::{Duration, Instant};

use tokenmill_testkit::{Rounds, Slice, sizes};

#[test]
fn slices_are_disjoint_and_together_the_whole() {
    for n in [0, 1, 3, 15, 16, 17, 100] {
        let mut all: Vec<usize> = (0..Slice::COUNT.min(n.max(1)))
            .flat_map(|number| Slice::Number(number).cases(n))
            .collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..n), "{n}");
        assert!(Slice::Whole.cases(n).eq(0..n), "{n}");
        for number in 0..Slice::COUNT {
            let n_tried = Slice::Number(number).cases(n).count();
            assert!(
                n_tried >= n / Slice::COUNT && n_tried >= n.min(1),
                "{n}: {n_tried}"
            );
        }
    }
}

#[test]
fn edges_are_in_every_slice_of_sizes() {
    let found = sizes("sizes", 33, &[33, 1, 8]);
    assert!([1, 8, 33].iter().all(|edge| found.contains(edge)), "{found:?}");
    assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
    assert!(found.len() >= 3 + 30 / Slice::COUNT, "{found:?}");
}

#[test]
fn the_commit_chooses_where_nothing_else_is_asked_for() {
    let commit = "be09d41d6133a1b7df3e41bcc705e68a43c7f813\n";
    let other = "1f74a8a5a91182c3489bfca841eb9709361f085c\n";
    assert_eq!(Slice::chosen(Some("all"), Some(commit)), Slice::Whole);
    assert_eq!(Slice::chosen(Some("5"), Some(commit)), Slice::Number(5));
    let chosen = Slice::chosen(None, Some(commit));
    assert!(matches!(chosen, Slice::Number(number) if number < Slice::COUNT));
    assert_eq!(Slice::chosen(None, Some(commit)), chosen);
    assert_ne!(Slice::chosen(None, Some(other)), chosen);
    // All cases run if no commit is known.
    assert_eq!(Slice::chosen(None, None), Slice::Whole);
    assert_eq!(Slice::chosen(None, Some("")), Slice::Whole);
}

#[test]
#[should_panic(expected = "TOKENMILL_TESTS is `16`, expected `all` or a slice from 0 to 15")]
fn another_value_is_refused() {
    Slice::chosen(Some("16"), None);
}

#[test]
fn a_generator_tries_its_seeds_in_order() {
    let ends = |until| Rounds::new("test", 3, 3, until).take(100).collect::<Vec<_>>();
    assert_eq!(ends(None), [3, 4, 5]);
    assert_eq!(ends(Some(Instant::now())), [0; 0]);
    assert_eq!(ends(Some(Instant::now() + Duration::from_mins(1))).len(), 100);
}
