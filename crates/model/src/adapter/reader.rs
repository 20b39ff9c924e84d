//! [`AdapterReader`]: reads adapters for one base model.
//!
//! Both forms end in the same steps: numbers are checked, and rows are put in the order of the base.
//! Invariant: the reader owns the facts about the base that it needs, so adapters can be read while the base
//! runs.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use tokenmill_backend::{Adapter, AdapterWeight, FloatMatrix};
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_quant::Format;

use super::{MAX_ADAPTER_BYTES, gguf, peft};
use crate::{
    Descriptor, LoadError, MixerDescriptor,
    arch::recasts_of,
    hf_layout::{GgufRows, HfLayout, Recast},
};

/// Reads adapters for one base model.
#[derive(Clone, Debug)]
pub struct AdapterReader {
    pub(super) descriptor: Descriptor,
    /// Whether the base is a GGUF file. Its rows may be in another order than a folder's.
    is_gguf: bool,
    layouts: Vec<&'static HfLayout>,
}

/// The file format of an adapter, which determines the order of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Gguf,
    Peft,
}

impl AdapterReader {
    pub(crate) fn new(descriptor: &Descriptor, is_gguf: bool) -> Self {
        Self {
            descriptor: descriptor.clone(),
            is_gguf,
            layouts: crate::arch::layouts(&descriptor.arch),
        }
    }

    /// Reads an adapter: a GGUF file as written by llama.cpp's converter, or a PEFT folder
    /// (`adapter_config.json` and `adapter_model.safetensors`).
    ///
    /// # Errors
    /// [`LoadError::BadAdapter`], [`LoadError::Read`] or [`LoadError::Gguf`], with the cause in one line.
    pub fn read(&self, path: &Path) -> Result<Adapter, LoadError> {
        if path.is_dir() {
            peft::read(self, path)
        } else {
            gguf::read(self, path)
        }
    }

    /// Reads an adapter from an opened GGUF file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn from_gguf(&self, file: &GgufFile) -> Result<Adapter, LoadError> {
        gguf::parse(self, Path::new("the adapter"), file)
    }

    /// Reads an adapter from the bytes of `adapter_config.json` and `adapter_model.safetensors`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn from_peft(&self, config: &[u8], tensors: &[u8]) -> Result<Adapter, LoadError> {
        let names = ["adapter_config.json", "adapter_model.safetensors"];
        peft::parse(self, names.map(Path::new), config, tensors)
    }

    /// Returns the layouts of folders of the base's architecture.
    pub(super) fn layouts(&self) -> &[&'static HfLayout] {
        &self.layouts
    }

    /// Combines the parts of each weight that a file contains, and checks the result.
    pub(super) fn finish(
        &self,
        path: &Path,
        form: Form,
        mut weights: Vec<AdapterWeight>,
    ) -> Result<Adapter, LoadError> {
        if weights.is_empty() {
            return Err(bad(path, "it has no adapter tensors"));
        }
        weights.sort_by(|a, b| a.tensor.cmp(&b.tensor));
        if let Some(twice) = weights.windows(2).find(|pair| pair[0].tensor == pair[1].tensor) {
            return Err(bad(path, format!("two of its modules are `{}`", twice[0].tensor)));
        }
        let mut n_bytes = 0_usize;
        for weight in &mut weights {
            n_bytes = n_bytes.saturating_add(weight.a.bytes.len() + weight.b.bytes.len());
            if n_bytes > MAX_ADAPTER_BYTES {
                return Err(bad(path, too_large()));
            }
            if !weight.scale.is_finite() {
                return Err(bad(
                    path,
                    format!("the scale of `{}` is {}", weight.tensor, weight.scale),
                ));
            }
            for (matrix, which) in [(&weight.a, "a"), (&weight.b, "b")] {
                if let Some(value) = not_finite(matrix) {
                    return Err(bad(
                        path,
                        format!(
                            "the matrix {which} of `{}` holds {value}, which is not finite",
                            weight.tensor
                        ),
                    ));
                }
            }
            self.reorder_rows(path, form, weight)?;
        }
        Ok(Adapter { weights })
    }

    /// Puts the rows of `b` in the order of the base's rows. For queries and keys, GGUF files and folders may
    /// differ.
    fn reorder_rows(&self, path: &Path, form: Form, weight: &mut AdapterWeight) -> Result<(), LoadError> {
        let rows = self
            .layouts
            .first()
            .map_or(GgufRows::Same, |layout| layout.gguf_rows());
        if (form == Form::Gguf) == self.is_gguf {
            return Ok(());
        }
        if !is_alike(&self.descriptor, &weight.tensor) {
            return Err(bad(
                path,
                format!(
                    "the two kinds of files order `{}` differently; take an adapter of the base's own kind",
                    weight.tensor
                ),
            ));
        }
        if rows == GgufRows::Same {
            return Ok(());
        }
        if rows == GgufRows::Scaled {
            return Err(bad(
                path,
                "the two kinds of files scale this architecture's weights differently; take an adapter of the base's own kind",
            ));
        }
        let Some((layer_idx, part)) = layer_and_part(&weight.tensor) else {
            return Ok(());
        };
        let attention = (self.descriptor.layers.get(layer_idx)).and_then(|layer| layer.mixer.attention());
        let (Some(attention), "attn_q.weight" | "attn_k.weight") = (attention, part) else {
            return Ok(());
        };
        let head_dim = attention.head_dim_k;
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !weight.n_out.is_multiple_of(head_dim) {
            return Err(bad(
                path,
                format!(
                    "`{}` has {} rows, expected whole heads of {head_dim}",
                    weight.tensor, weight.n_out
                ),
            ));
        }
        // The two values of a rope pair are adjacent in GGUF files; in folders they are half a head apart.
        let half = head_dim / 2;
        let source = |row: usize| {
            let (head, i) = (row / head_dim * head_dim, row % head_dim);
            head + if self.is_gguf {
                i % 2 * half + i / 2
            } else {
                i % half * 2 + i / half
            }
        };
        let row_bytes = weight.b.bytes.len() / weight.n_out;
        weight.b.bytes = (0..weight.n_out)
            .flat_map(|row| &weight.b.bytes[source(row) * row_bytes..][..row_bytes])
            .copied()
            .collect();
        Ok(())
    }
}

/// Returns whether a GGUF file and a folder store a weight's numbers in the same order, except the rows of
/// queries and keys.
fn is_alike(descriptor: &Descriptor, tensor: &str) -> bool {
    let recasts = recasts_of(&descriptor.arch).iter();
    let mut own = recasts
        .filter(|(end, _)| tensor.ends_with(end))
        .map(|(_, recast)| recast);
    own.all(|recast| match recast {
        Recast::Rename(_)
        | Recast::OfClassifier
        | Recast::IntoKey(_)
        | Recast::Squeeze
        | Recast::Column
        | Recast::FourDims
        | Recast::NeighbouringQueries
        | Recast::NeighbouringKeys => true,
        // With one value head per key head, all orders are the same.
        Recast::TiledRows | Recast::TiledColumns => {
            descriptor.layers.iter().all(|layer| match &layer.mixer {
                MixerDescriptor::DeltaNet(net) => net.n_k_heads == net.n_v_heads,
                _ => true,
            })
        }
        _ => false,
    })
}

/// Returns the layer of a tensor and its name within the layer.
pub(super) fn layer_and_part(tensor: &str) -> Option<(usize, &str)> {
    let (layer, part) = tensor.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

pub(super) fn too_large() -> String {
    format!("its matrices take more than {} MiB", MAX_ADAPTER_BYTES >> 20)
}

pub(super) fn bad(path: &Path, reason: impl Into<String>) -> LoadError {
    LoadError::BadAdapter {
        path: PathBuf::from(path),
        reason: reason.into(),
    }
}

/// Reads a matrix in a type that backends accept: float types are kept, other types become F32.
///
/// # Errors
/// The reason, if the type cannot be decoded or the number of bytes does not match the shape.
pub(super) fn float_matrix(
    ty: TensorType,
    [n_rows, n_cols]: [usize; 2],
    bytes: Vec<u8>,
) -> Result<FloatMatrix, String> {
    let cannot = || format!("type {} with rows of {n_cols} numbers cannot be read", ty.name());
    let row_bytes = ty.row_bytes(n_cols).ok_or_else(cannot)?;
    if row_bytes.checked_mul(n_rows) != Some(bytes.len()) {
        return Err(format!(
            "{} bytes are not {n_rows} rows of {n_cols} numbers",
            bytes.len()
        ));
    }
    if matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
        return Ok(FloatMatrix { ty, bytes });
    }
    Format::of(ty).map_err(|_| cannot())?;
    let mut row = vec![0.0; n_cols];
    let mut floats = Vec::with_capacity(n_rows * n_cols * size_of::<f32>());
    for source in bytes.chunks_exact(row_bytes.max(1)) {
        tokenmill_quant::dequantize_row(ty, source, &mut row).map_err(|_| cannot())?;
        floats.extend(row.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(FloatMatrix {
        ty: TensorType::F32,
        bytes: floats,
    })
}

/// Returns the first number that is not finite.
fn not_finite(matrix: &FloatMatrix) -> Option<f32> {
    fn find<const N: usize>(bytes: &[u8], decode: fn([u8; N]) -> f32) -> Option<f32> {
        let mut values = bytes.as_chunks().0.iter().map(|bytes| decode(*bytes));
        values.find(|value| !value.is_finite())
    }
    match matrix.ty {
        TensorType::F16 => find(&matrix.bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        TensorType::BF16 => find(&matrix.bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        _ => find(&matrix.bytes, f32::from_le_bytes),
    }
}
