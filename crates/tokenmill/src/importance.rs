//! [`ImportanceRun`]: measures on a text how much each input of each matrix matters.
//!
//! It loads the model on a CPU backend that exposes the inputs of its products. Invariant: each chunk is
//! computed as if it were the only one, and all its tokens count.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use tokenmill_convert::{ImportanceSums, MeasuredMatrix};
use tokenmill_sched::{Event, ForwardParams, ForwardRows};

use crate::{Error, LoadOptions, Model, model_source::ModelSource};

/// A model on the CPU, and the measurements so far.
#[derive(Debug)]
pub struct ImportanceRun {
    model: Model,
    sums: Arc<Mutex<ImportanceSums>>,
}

impl ImportanceRun {
    /// Loads the model at `path` on the CPU.
    ///
    /// # Errors
    /// Returns the errors of [`LoadOptions::load`].
    pub fn open(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        let mut sums = ImportanceSums::new();
        let source = ModelSource::find(path)?;
        if let Some(file) = source.open_gguf()? {
            sums = sums.measured_on(file.metadata());
        }
        // If experts' inputs are scaled by the router's weight, the scale is applied after the product, with the same result.
        let network = source.open_network()?;
        let mut layers = network.descriptor().layers.iter();
        let weighs_input = layers.any(|layer| layer.ffn.moe().is_some_and(|moe| moe.weighs_input));
        let sums = Arc::new(Mutex::new(sums));
        let mut backend = options.compute.cpu_backend()?;
        let shared = Arc::clone(&sums);
        backend.observe_inputs(Box::new(move |input| {
            // It is taken apart for the heads, and a file has it whole.
            if input.tensor.ends_with("attn_kv_b.weight") {
                return;
            }
            let mut sums = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let matrix = MeasuredMatrix {
                tensor: input.tensor,
                n_matrices: input.n_matrices,
                matrix_idx: input.matrix_idx,
                is_chosen: input.is_chosen,
                n_columns: input.width,
            };
            let scale = if weighs_input { input.weight } else { 1.0 };
            sums.add(matrix, input.rows, scale);
        }));
        Ok(Self {
            model: options.load_on(path, backend)?,
            sums,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Computes a chunk of tokens.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn add(&mut self, tokens: Vec<u32>) -> Result<(), Error> {
        let (rows, from) = if self.model.engine().limits().is_encoder {
            // It makes one row of all its tokens, and predicts none.
            (ForwardRows::Hidden, tokens.len().saturating_sub(1))
        } else {
            (ForwardRows::Logits, 0)
        };
        let params = ForwardParams {
            uses_prefix_cache: false,
            ..ForwardParams::new(rows, from)
        };
        for event in self.model.engine().submit_forward(tokens, params)? {
            if let Event::Failed { error, .. } = event {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Returns the measured sums.
    pub fn sums(&self) -> ImportanceSums {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
