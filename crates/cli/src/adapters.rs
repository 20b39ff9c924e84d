//! [`AdapterArgs`]: the adapters that a command loads with its model.
//!
//! Separate from the other options of a load because some commands compute without an engine, which has the adapters. Invariant:
//! a command of one text uses its one adapter, and one that serves many leaves the choice to each request.

use std::str::FromStr;

use tokenmill::{AdapterSource, LoadOptions};

use crate::failure::Failure;

/// The adapters of a command.
#[derive(clap::Args, Debug, Clone, Default)]
#[command(next_help_heading = "Loading")]
pub(crate) struct AdapterArgs {
    /// Load a LoRA adapter: a GGUF file or a PEFT folder, and what its changes are multiplied by; where requests choose, may be
    /// repeated, and a request names it as its model
    #[arg(long, value_name = "NAME=PATH[:SCALE]", value_parser = AdapterSource::from_str)]
    lora: Vec<AdapterSource>,
}

impl AdapterArgs {
    /// Adds the adapters to a load.
    pub(crate) fn add_to(&self, options: &mut LoadOptions) {
        options.adapters.clone_from(&self.lora);
        options.max_adapters = options.max_adapters.max(self.lora.len());
    }

    /// The adapter of a command that computes one text.
    ///
    /// # Errors
    /// Several of them.
    pub(crate) fn only(&self) -> Result<Option<String>, Failure> {
        match &self.lora[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.name.clone())),
            _ => Err(Failure::usage("`--lora` is given more than once, and this command uses one adapter")
                .hint("`serve` and `batch` take several, and each request names its own")),
        }
    }

    /// The names of all.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.lora.iter().map(|adapter| adapter.name.as_str())
    }
}
