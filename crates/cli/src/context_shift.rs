//! [`ContextShiftArgs`]: how a text continues after it has filled its context.
//!
//! Every command that generates takes them. Invariant: nothing is dropped unless the caller asks for it.

use clap::Args;
use tokenmill::{LoadOptions, load::ContextShift};

use crate::{failure::Failure, help::ADVANCED, kept_session::SessionArgs, numbers::Limit};

/// How a text continues after it has filled its context.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Context")]
pub(crate) struct ContextShiftArgs {
    /// When the context is full, drop the oldest half of the tokens after --keep, compute the others again, and continue [default:
    /// the text ends there]
    #[arg(long, help_heading = ADVANCED)]
    context_shift: bool,
    /// Tokens at the start of the prompt that --context-shift never drops, in addition to the token that begins a text: up to
    /// half of the context; -1 keeps the prompt, up to that limit
    ///
    /// [default: 0]
    #[arg(long, help_heading = ADVANCED, value_name = "N", requires = "context_shift", value_parser = keep)]
    keep: Option<Limit>,
}

/// Reads the number of tokens to keep.
fn keep(text: &str) -> Result<Limit, String> {
    text.parse()
        .map_err(|_| "expected a whole number of tokens, 0 or more, or -1 for the prompt".to_owned())
}

impl ContextShiftArgs {
    /// Puts the choice into the options of a load.
    pub(crate) fn add_to(&self, options: &mut LoadOptions) {
        options.context_shift = self.context_shift.then(|| ContextShift {
            keep: match self.keep {
                None => 0,
                Some(keep) => keep.bound().unwrap_or(usize::MAX),
            },
        });
    }

    /// Refuses a session with a context that is shifted: the text after a shift follows another text than the file would say.
    ///
    /// # Errors
    /// Both flags.
    pub(crate) fn check_session(&self, session: &SessionArgs) -> Result<(), Failure> {
        if self.context_shift && session.is_given() {
            return Err(Failure::usage(
                "`--session` does not go with `--context-shift`: a conversation that lost its oldest tokens has no beginning to continue from",
            )
            .hint("leave one of them out"));
        }
        Ok(())
    }
}
