//! [`cases`] and [`sizes`]: which cases of a large grid a run tries.
//!
//! Separate because every crate's grids are cut alike. Invariant: a case is its number, so it is the same in a slice and in the whole
//! grid; edge cases (0, 1, ragged tails, NaN, limits) are no part of a random grid and always run.

use std::{process::Command, sync::OnceLock};

/// Runs of neighbouring commits that between them try about a whole grid.
const N_SLICES: usize = 8;

/// The variable that asks for the whole of all grids, or for one slice by its number.
const VARIABLE: &str = "TOKENMILL_TESTS";

/// The part of a grid that this run tries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slice {
    Whole,
    Number(usize),
}

/// Gives the numbers of the cases that this run tries, of a random grid of `n`: an eighth that the commit chooses, at least one, or all
/// of them under `TOKENMILL_TESTS=all`.
///
/// Each case makes its random numbers of its own number, so that it can be tried again alone. The slice is printed, which shows where a
/// test fails: `TOKENMILL_TESTS=3` tries slice 3 at any commit. Without a repository all cases run.
///
/// ```
/// use tokenmill_testkit::{Random, cases};
///
/// for case in cases("sums", 100) {
///     let mut random = Random::new(case as u64);
///     let (a, b) = (random.below(1000), random.below(1000));
///     assert_eq!(a + b, b + a);
/// }
/// ```
///
/// # Panics
/// If `TOKENMILL_TESTS` has another value.
pub fn cases(grid: &str, n: usize) -> impl Iterator<Item = usize> + use<> {
    static SLICE: OnceLock<Slice> = OnceLock::new();
    let slice = *SLICE.get_or_init(|| {
        let asked = std::env::var(VARIABLE).ok();
        choose(asked.as_deref(), commit().as_deref())
    });
    if let Slice::Number(number) = slice {
        eprintln!(
            "{grid}: slice {number} of {N_SLICES} of {n} random cases; {VARIABLE}=all tries all, {VARIABLE}={number} these"
        );
    }
    of_slice(slice, n)
}

/// Gives the sizes from 1 to `max` that this run tries, in order: those where something changes always, and a slice of the others.
pub fn sizes(grid: &str, max: usize, edges: &[usize]) -> Vec<usize> {
    let others: Vec<usize> = (1..=max).filter(|size| !edges.contains(size)).collect();
    let chosen = cases(grid, others.len()).map(|case| others[case]);
    let mut sizes: Vec<usize> = edges.iter().copied().chain(chosen).collect();
    sizes.sort_unstable();
    sizes
}

fn of_slice(slice: Slice, n: usize) -> impl Iterator<Item = usize> + use<> {
    let n_slices = N_SLICES.min(n.max(1));
    (0..n).filter(move |case| match slice {
        Slice::Whole => true,
        Slice::Number(number) => case % n_slices == number % n_slices,
    })
}

fn choose(asked: Option<&str>, commit: Option<&str>) -> Slice {
    match asked {
        Some("all") => Slice::Whole,
        Some(number) => match number.parse() {
            Ok(number) if number < N_SLICES => Slice::Number(number),
            _ => panic!(
                "{VARIABLE} is `{number}`, expected `all` or a slice from 0 to {}",
                N_SLICES - 1
            ),
        },
        None => commit
            .and_then(|commit| u64::from_str_radix(commit.get(..15)?, 16).ok())
            .map_or(Slice::Whole, |bits| {
                Slice::Number((bits % N_SLICES as u64) as usize)
            }),
    }
}

/// The commit that is checked out, in hexadecimal digits.
fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "HEAD"])
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8(output.stdout).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_disjoint_and_together_the_whole() {
        for n in [0, 1, 3, 7, 8, 9, 100] {
            let mut all: Vec<usize> = (0..N_SLICES.min(n.max(1)))
                .flat_map(|number| of_slice(Slice::Number(number), n))
                .collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..n), "{n}");
            assert!(of_slice(Slice::Whole, n).eq(0..n), "{n}");
            for number in 0..N_SLICES {
                let n_tried = of_slice(Slice::Number(number), n).count();
                assert!(n_tried >= n / N_SLICES && n_tried >= n.min(1), "{n}: {n_tried}");
            }
        }
    }

    #[test]
    fn edges_are_in_every_slice_of_sizes() {
        let found = sizes("sizes", 33, &[33, 1, 8]);
        assert!([1, 8, 33].iter().all(|edge| found.contains(edge)), "{found:?}");
        assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
        assert!(found.len() >= 3 + 30 / N_SLICES, "{found:?}");
    }

    #[test]
    fn the_commit_chooses_where_nothing_else_is_asked_for() {
        let commit = "be09d41d6133a1b7df3e41bcc705e68a43c7f813\n";
        let other = "1f74a8a5a91182c3489bfca841eb9709361f085c\n";
        assert_eq!(choose(Some("all"), Some(commit)), Slice::Whole);
        assert_eq!(choose(Some("5"), Some(commit)), Slice::Number(5));
        let chosen = choose(None, Some(commit));
        assert!(matches!(chosen, Slice::Number(number) if number < N_SLICES));
        assert_eq!(choose(None, Some(commit)), chosen);
        assert_ne!(choose(None, Some(other)), chosen);
        // Nothing is left out where no commit is known.
        assert_eq!(choose(None, None), Slice::Whole);
        assert_eq!(choose(None, Some("")), Slice::Whole);
    }

    #[test]
    #[should_panic(expected = "TOKENMILL_TESTS is `8`, expected `all` or a slice from 0 to 7")]
    fn another_value_is_refused() {
        choose(Some("8"), None);
    }
}
