//! [`SpeculationArgs`]: the options that say whether tokens are guessed ahead.
//!
//! Separate because every command that generates takes them. Invariant: an answer is the same with any of them.

use clap::{Args, ValueEnum};
use tokenmill::Speculation;
use tokenmill_sched::MAX_DRAFT;

/// Whether tokens are guessed ahead.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct SpeculationArgs {
    /// Guess tokens ahead and verify them in one step; the answer is the same
    #[arg(long, value_enum, default_value_t = Drafter::Auto, value_name = "KIND")]
    spec: Drafter,
    /// Tokens guessed in a row at most
    #[arg(long, value_name = "N", default_value_t = Speculation::DEFAULT_MAX_DRAFT as u32,
        value_parser = clap::value_parser!(u32).range(1..=MAX_DRAFT as i64))]
    spec_max: u32,
}

/// What guesses tokens.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Drafter {
    /// As `ngram`, where the measured times say that it pays; never on a GPU.
    Auto,
    /// Nothing.
    Off,
    /// What followed the newest tokens where they occurred before in prompt or answer.
    Ngram,
}

impl SpeculationArgs {
    /// The option of a load.
    pub(crate) fn speculation(&self) -> Speculation {
        let max_draft = self.spec_max as usize;
        match self.spec {
            Drafter::Off => Speculation::Off,
            Drafter::Auto => Speculation::Auto { max_draft },
            Drafter::Ngram => Speculation::Ngram { max_draft },
        }
    }
}
