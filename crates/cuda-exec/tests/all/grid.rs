//! [`pairs`]: which cases a run tries of a grid of types and shapes.
//!
//! Separate because tests of kernels and of operations have such grids, whose launches are interpreted. Invariant: each type
//! and each shape is tried always; all pairs of them are tried by the slices together.

use tokenmill_testkit::cases;

/// Gives the pairs that this run tries: of each first and of each second item the first pair that has it, and the slice of the
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
