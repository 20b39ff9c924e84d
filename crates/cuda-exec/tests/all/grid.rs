//! [`pairs`]: the cases of a grid of types and shapes that a run tries.
//!
//! The launches of such grids are interpreted, so a run tries a slice. Invariant: each run tries each type and each shape; the
//! slices together try all pairs.

use tokenmill_testkit::cases;

/// Returns the pairs that this run tries: for each first and each second item the first pair that has it, and the slice of the
/// others that [`cases`] chooses.
pub(crate) fn pairs<A: Copy + PartialEq, B: Copy + PartialEq>(
    grid: &str,
    all: impl IntoIterator<Item = (A, B)>,
) -> Vec<(A, B)> {
    let (mut tried, mut others) = (Vec::<(A, B)>::new(), Vec::new());
    for (a, b) in all {
        let is_new = !(tried.iter().any(|pair| pair.0 == a) && tried.iter().any(|pair| pair.1 == b));
        let list = if is_new { &mut tried } else { &mut others };
        list.push((a, b));
    }
    tried.extend(cases(grid, others.len()).map(|case| others[case]));
    tried
}
