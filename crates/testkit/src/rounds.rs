//! [`rounds`]: the rounds of a generator that a run tries, and for how long.
//!
//! A generator has no end, unlike the grids of [`cases`](crate::cases()). Invariant: a round is its seed, so that it can be tried again
//! alone.

use std::{
    io::{self, Write as _},
    ops::RangeFrom,
    time::{Duration, Instant},
};

/// The variable that requests more rounds, for so many seconds.
const SECONDS: &str = "TOKENMILL_TEST_SECONDS";

/// The variable that sets the first seed.
const SEED: &str = "TOKENMILL_TEST_SEED";

/// Returns the seeds of a generator: `n` of them from 0 on. `TOKENMILL_TEST_SECONDS=3600` continues for an hour, `TOKENMILL_TEST_SEED=7`
/// begins with seed 7. The seed of a failed round is printed.
///
/// ```
/// use tokenmill_testkit::{Random, rounds};
///
/// for seed in rounds("sums", 100) {
///     let mut random = Random::new(seed);
///     let (a, b) = (random.below(1000), random.below(1000));
///     assert_eq!(a + b, b + a);
/// }
/// ```
///
/// # Panics
/// If one of the variables is not a number.
pub fn rounds(generator: &'static str, n: u64) -> Rounds {
    let number = |name: &str| -> Option<u64> {
        let text = std::env::var(name).ok()?;
        let number = text.parse().ok();
        Some(number.unwrap_or_else(|| panic!("{name} is `{text}`, expected a number")))
    };
    let until = number(SECONDS).map(|seconds| Instant::now() + Duration::from_secs(seconds));
    Rounds::new(generator, number(SEED).unwrap_or(0), n, until)
}

/// Iterates over seeds; see [`rounds`].
#[derive(Debug)]
pub struct Rounds {
    generator: &'static str,
    seeds: RangeFrom<u64>,
    newest: Option<u64>,
    /// The seed after the last one that is always tried.
    n_least: u64,
    until: Option<Instant>,
}

impl Iterator for Rounds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let goes_on = match self.until {
            Some(until) => Instant::now() < until,
            None => self.seeds.start < self.n_least,
        };
        if !goes_on {
            if self.until.is_some() {
                self.tell("reached");
            }
            self.newest = None;
            return None;
        }
        self.newest = self.seeds.next();
        if self.until.is_some() && self.newest.is_some_and(|seed| seed % 64 == 0) {
            self.tell("at");
        }
        self.newest
    }
}

impl Rounds {
    /// Iterates over `n` seeds from `first` on, or over as many as there is time for.
    pub fn new(generator: &'static str, first: u64, n: u64, until: Option<Instant>) -> Self {
        Self {
            generator,
            seeds: first..,
            newest: None,
            n_least: first.saturating_add(n),
            until,
        }
    }

    fn tell(&self, what: &str) {
        if let Some(seed) = self.newest {
            // The test harness holds back printed text, and loses it if the process aborts.
            let _ = writeln!(io::stderr(), "{}: {what} {SEED}={seed}", self.generator);
        }
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell("failed with");
        }
    }
}
