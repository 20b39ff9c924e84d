//! [`cases`], [`sizes`] and [`Slice`]: the cases of a large grid that a run tries.
//!
//! All crates slice their grids in the same way. Invariant: a case is its number, so it is the same in a slice and in the whole grid;
//! edge cases (0, 1, ragged tails, NaN, limits) are not part of a random grid and always run.

use std::{process::Command, sync::OnceLock};

/// The variable that selects the whole of all grids, or one slice by its number.
const VARIABLE: &str = "TOKENMILL_TESTS";

/// The part of a grid that a run tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// All of it.
    Whole,
    /// The slice of this number, below [`Slice::COUNT`].
    Number(usize),
}

/// Returns the numbers of the cases that this run tries, of a random grid of `n`: a sixteenth that the commit chooses, at least one, or
/// all of them under `TOKENMILL_TESTS=all`.
///
/// Each case makes its random numbers from its own number, so that it can be tried again alone. The slice is printed, which shows where
/// a test fails: `TOKENMILL_TESTS=3` tries slice 3 at any commit. Without a repository all cases run.
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
        Slice::chosen(asked.as_deref(), commit().as_deref())
    });
    if let Slice::Number(number) = slice {
        eprintln!(
            "{grid}: slice {number} of {} of {n} random cases; {VARIABLE}=all tries all, {VARIABLE}={number} these",
            Slice::COUNT
        );
    }
    slice.cases(n)
}

/// Returns the sizes from 1 to `max` that this run tries, in order: the given ones, where something changes, and a slice of the others.
pub fn sizes(grid: &str, max: usize, edges: &[usize]) -> Vec<usize> {
    let others: Vec<usize> = (1..=max).filter(|size| !edges.contains(size)).collect();
    let chosen = cases(grid, others.len()).map(|case| others[case]);
    let mut sizes: Vec<usize> = edges.iter().copied().chain(chosen).collect();
    sizes.sort_unstable();
    sizes
}

impl Slice {
    /// Number of consecutive commits whose runs together try about a whole grid.
    pub const COUNT: usize = 16;

    /// Returns the numbers of its cases in a grid of `n`.
    pub fn cases(self, n: usize) -> impl Iterator<Item = usize> + use<> {
        let n_slices = Self::COUNT.min(n.max(1));
        (0..n).filter(move |case| match self {
            Self::Whole => true,
            Self::Number(number) => case % n_slices == number % n_slices,
        })
    }

    /// Chooses by `TOKENMILL_TESTS`, or otherwise by the commit, in hexadecimal digits; the whole if no commit is known.
    ///
    /// # Panics
    /// If `asked` is neither `all` nor the number of a slice.
    pub fn chosen(asked: Option<&str>, commit: Option<&str>) -> Self {
        match asked {
            Some("all") => Self::Whole,
            Some(number) => match number.parse() {
                Ok(number) if number < Self::COUNT => Self::Number(number),
                _ => panic!(
                    "{VARIABLE} is `{number}`, expected `all` or a slice from 0 to {}",
                    Self::COUNT - 1
                ),
            },
            None => commit
                .and_then(|commit| u64::from_str_radix(commit.get(..15)?, 16).ok())
                .map_or(Self::Whole, |bits| {
                    Self::Number((bits % Self::COUNT as u64) as usize)
                }),
        }
    }
}

/// Returns the checked out commit, in hexadecimal digits.
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
