//! [`SpeculationArgs`]: the options that say whether tokens are guessed ahead.
//!
//! Separate because every command that generates takes them. Invariant: an answer is the same with any of them.

use clap::{Args, ValueEnum};
use tokenmill::Speculation;
use tokenmill_sched::MAX_DRAFT;

use crate::failure::Failure;

/// Whether tokens are guessed ahead.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct SpeculationArgs {
    /// Guess tokens ahead and verify them in one step; the answer is the same
    #[arg(long, value_enum, default_value_t = Drafter::Auto, value_name = "KIND")]
    spec: Drafter,
    /// Tokens guessed in a row at most
    ///
    /// [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_DRAFT as i64))]
    spec_max: Option<u32>,
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
    ///
    /// # Errors
    /// A length of what is not guessed.
    pub(crate) fn speculation(&self) -> Result<Speculation, Failure> {
        let max_draft = (self.spec_max).map_or(Speculation::DEFAULT_MAX_DRAFT, |n_tokens| n_tokens as usize);
        match self.spec {
            Drafter::Off if self.spec_max.is_some() => {
                Err(Failure::usage("`--spec-max` does nothing with `--spec off`"))
            }
            Drafter::Off => Ok(Speculation::Off),
            Drafter::Auto => Ok(Speculation::Auto { max_draft }),
            Drafter::Ngram => Ok(Speculation::Ngram { max_draft }),
        }
    }
}
