//! [`write`]: a model whose weights are holes in its file.
//!
//! A tool that only needs shapes, such as the estimate of the kernels' time, gets the tensors of a real model without their
//! gigabytes. Invariant: everything except the weights equals the model of random weights.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    path::Path,
};

use anyhow::{Context, ensure};

use super::{DEFAULT_SEED, DEFAULT_STD, preset::Preset, recipe::Recipe, tensors::TensorKind, write_model};

/// Bytes of zeros that are handed on at once.
const PIECE_BYTES: usize = 16 << 20;

/// A file in which zeros take no space.
struct WithHoles {
    file: File,
    length: u64,
}

impl Write for WithHoles {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.iter().all(|&byte| byte == 0) {
            self.file.seek(SeekFrom::Current(bytes.len() as i64))?;
        } else {
            self.file.write_all(bytes)?;
        }
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)?;
        self.file.flush()
    }
}

/// Writes the model of a preset in a type, with only its first layers if `n_layers` says so.
///
/// # Errors
/// An unknown preset or type, more layers than the preset has or none, or a file that cannot be written.
pub(crate) fn write(preset: &str, recipe: &str, n_layers: Option<u32>, path: &Path) -> anyhow::Result<()> {
    let (mut preset, recipe) = (Preset::find(preset)?.clone(), Recipe::find(recipe)?);
    if let Some(n_layers) = n_layers {
        ensure!(
            (1..=preset.n_layers).contains(&n_layers),
            "{} has 1 to {} layers, not {n_layers}",
            preset.name,
            preset.n_layers
        );
        preset.n_layers = n_layers;
    }
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let file = WithHoles { file, length: 0 };
    let zeros = vec![0; PIECE_BYTES];
    write_model(file, &preset, recipe, DEFAULT_SEED, DEFAULT_STD, |out, _| {
        let mut left = out.due().context("no tensor is due")?.n_bytes;
        while left > 0 {
            let n = left.min(zeros.len());
            out.write(&zeros[..n])?;
            left -= n;
        }
        Ok(())
    })?;
    Ok(())
}

/// The mean costs of a model's layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerCosts {
    pub(crate) weight_bytes: usize,
    pub(crate) n_weights: usize,
    /// Bytes of f16 keys and values.
    pub(crate) kv_bytes_per_token: usize,
    /// Width of a row of hidden states.
    pub(crate) n_embd: usize,
}

/// Counts the costs of a dense model's layers.
///
/// # Errors
/// An unknown preset or type, or a model whose rows do not use all weights.
pub(crate) fn layer_costs(preset: &str, recipe: &str) -> anyhow::Result<LayerCosts> {
    let (preset, recipe) = (Preset::find(preset)?, Recipe::find(recipe)?);
    ensure!(
        preset.experts.is_none() && preset.delta_net.is_none(),
        "the layers of {} are not alike",
        preset.name
    );
    let (mut weight_bytes, mut n_weights) = (0, 0);
    for tensor in preset.tensors() {
        if !tensor.name.starts_with("blk.") || tensor.kind != TensorKind::Weight {
            continue;
        }
        let width = tensor.dims[0] as usize;
        let ty = recipe.type_of(preset, &tensor.name, tensor.dims[0]);
        let row_bytes = ty.row_bytes(width).context("rows are whole blocks")?;
        weight_bytes += tensor.n_elements() / width * row_bytes;
        n_weights += tensor.n_elements();
    }
    let n_layers = preset.n_layers as usize;
    Ok(LayerCosts {
        weight_bytes: weight_bytes / n_layers,
        n_weights: n_weights / n_layers,
        kv_bytes_per_token: 2 * 2 * (preset.n_kv_heads * preset.head_dim) as usize,
        n_embd: preset.n_embd as usize,
    })
}

/// Returns the number of a model's layers.
///
/// # Errors
/// An unknown preset.
pub(crate) fn n_layers(preset: &str) -> anyhow::Result<u32> {
    Ok(Preset::find(preset)?.n_layers)
}
