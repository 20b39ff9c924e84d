//! [`AdapterArgs`]: the adapters that a command loads with its model.
//!
//! Only the engine holds adapters, and some commands compute without an engine. Invariant: a command for one
//! text uses its one adapter; a command for many requests lets each request choose.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use tokenmill::{LoadOptions, adapters::AdapterSource};

use crate::{failure::Failure, help::ADVANCED};

/// The adapters of a command.
#[derive(clap::Args, Debug, Clone, Default)]
#[command(next_help_heading = "Loading")]
pub(crate) struct AdapterArgs {
    /// Load a LoRA adapter, a GGUF file or a PEFT folder, multiplied by SCALE. `run`, `chat` and `perplexity`
    /// take one; `serve` and `batch` take several, and a request picks one by NAME, by default the file's name
    #[arg(long, value_name = "[NAME=]PATH[:SCALE]", value_parser = AdapterSource::from_str)]
    lora: Vec<AdapterSource>,
    /// Add a control vector, a GGUF file, to the hidden state of all requests, multiplied by a scale; may be repeated
    #[arg(long, help_heading = ADVANCED, value_name = "FILE[:SCALE]", value_parser = control_vector)]
    control_vector: Vec<ControlSource>,
    /// First and last layer after which control vectors are added, counted from 0 [default: all that they have]
    #[arg(long, help_heading = ADVANCED, value_names = ["FIRST", "LAST"], num_args = 2, requires = "control_vector")]
    control_vector_layer_range: Vec<usize>,
}

/// A control vector's file and its scale.
#[derive(Clone, Debug)]
struct ControlSource {
    path: PathBuf,
    scale: f32,
}

fn control_vector(text: &str) -> Result<ControlSource, String> {
    let (path, scale) = match text.rsplit_once(':') {
        Some((path, number)) => number.parse().map_or((text, 1.0), |scale| (path, scale)),
        None => (text, 1.0),
    };
    if path.is_empty() || !f32::is_finite(scale) {
        return Err("say FILE or FILE:SCALE".to_owned());
    }
    Ok(ControlSource {
        path: path.into(),
        scale,
    })
}

impl AdapterArgs {
    /// Adds the adapters to a load.
    pub(crate) fn add_to(&self, options: &mut LoadOptions) {
        options.adapters.clone_from(&self.lora);
        options.max_adapters = options.max_adapters.max(self.lora.len());
        let controls = self.control_vector.iter();
        options.control_vectors = controls
            .map(|control| (control.path.clone(), control.scale))
            .collect();
        if let [first, last] = self.control_vector_layer_range[..] {
            options.control_layers = Some(first..=last);
        }
    }

    /// The adapter of a command that computes one text.
    ///
    /// # Errors
    /// Several of them.
    pub(crate) fn only(&self) -> Result<Option<String>, Failure> {
        match &self.lora[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.name.clone())),
            _ => Err(
                Failure::usage("`--lora` is given more than once, and this command uses one adapter")
                    .hint("`serve` and `batch` take several, and each request names its own"),
            ),
        }
    }

    /// Takes relative paths of adapters as relative to a folder.
    pub(crate) fn move_adapters_below(&mut self, folder: &Path) {
        for adapter in &mut self.lora {
            adapter.path = folder.join(&adapter.path);
        }
    }

    /// Takes relative paths of control vectors as relative to a folder.
    pub(crate) fn move_controls_below(&mut self, folder: &Path) {
        for control in &mut self.control_vector {
            control.path = folder.join(&control.path);
        }
    }

    /// The names of all.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.lora.iter().map(|adapter| adapter.name.as_str())
    }
}
