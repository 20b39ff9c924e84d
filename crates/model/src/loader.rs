//! [`Loader`]: uploads a source's tensors to a device, each checked against the descriptor.
//!
//! Each kind of mixer and feed-forward network loads its own weights with it. Invariant: it remembers which
//! tensors were used, since an ignored one would mean wrong output.

mod experts;
mod heads;
mod rows_of;

use std::{borrow::Cow, collections::HashSet};

use half::{bf16, f16};
use tokenmill_backend::{
    Linear, MatrixData, MatrixUsage, NetworkPart, Norm,
    program::{LinearId, MatrixId, MatrixInfo, NormId, VectorId, VectorInfo, WeightStore, Weights},
};
use tokenmill_gguf::{TensorBytes, TensorType};

use crate::{
    Descriptor, Ignorable, LoadError, NormDescriptor, OutputHead, Presence, WeightSource, WeightTensor,
};

use rows_of::runs_of;
pub(crate) use rows_of::{AdaptableWeight, RowsOf};

/// The progress of a load, in bytes of the file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes on the device.
    pub n_bytes_done: usize,
    /// Total bytes.
    pub n_bytes_total: usize,
}

/// Loads tensors by name.
pub(crate) struct Loader<'a> {
    pub(crate) descriptor: &'a Descriptor,
    pub(crate) source: &'a dyn WeightSource,
    /// Maximum number of positions of a sequence.
    pub(crate) n_ctx: usize,
    store: &'a mut dyn WeightStore,
    /// The part of the next weights.
    part: NetworkPart,
    /// The weights declared so far.
    pub(crate) weights: Weights,
    /// The weights loaded so far that adapters can change.
    pub(crate) adaptable: Vec<AdaptableWeight>,
    used: HashSet<String>,
    progress: LoadProgress,
    on_progress: &'a mut dyn FnMut(LoadProgress),
}

/// The position of a layer: the names of its tensors, and its rows of the stores.
#[derive(Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "indices of three different lists")]
pub(crate) struct LayerPlace {
    pub(crate) layer_idx: usize,
    /// Its index among the layers that store keys and values.
    pub(crate) kv_idx: usize,
    /// Its index among the layers that carry a state.
    pub(crate) state_idx: usize,
}

impl LayerPlace {
    /// Returns the full name of one of the layer's tensors.
    pub(crate) fn name(self, part: &str) -> String {
        format!("blk.{}.{part}", self.layer_idx)
    }
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        descriptor: &'a Descriptor,
        source: &'a dyn WeightSource,
        n_ctx: usize,
        store: &'a mut dyn WeightStore,
        on_progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Self {
        let n_bytes_total = source.infos().iter().map(|info| info.n_bytes).sum();
        Self {
            descriptor,
            source,
            n_ctx,
            store,
            part: NetworkPart::Common,
            weights: Weights::default(),
            adaptable: Vec::new(),
            used: HashSet::new(),
            progress: LoadProgress {
                n_bytes_done: 0,
                n_bytes_total,
            },
            on_progress,
        }
    }

    /// Sets the part of the network to which the next weights belong.
    pub(crate) fn enter(&mut self, part: NetworkPart) {
        self.part = part;
        self.store.enter(part);
    }

    /// Stores and declares a matrix.
    pub(crate) fn add_matrix(&mut self, data: &MatrixData<'_>) -> Result<MatrixId, LoadError> {
        self.store.store_matrix(data)?;
        Ok(self.declare(data.name, [data.n_out, data.n_in], data.usage))
    }

    /// Declares a matrix that another network has loaded.
    pub(crate) fn share_matrix(&mut self, name: &str, dims: [usize; 2], usage: MatrixUsage) -> MatrixId {
        self.store.share_matrix();
        self.declare(name, dims, usage)
    }

    fn declare(&mut self, name: &str, [n_out, n_in]: [usize; 2], usage: MatrixUsage) -> MatrixId {
        self.weights.add_matrix(MatrixInfo {
            name: name.to_owned(),
            n_out,
            n_in,
            part: self.part,
            usage,
        })
    }

    /// Stores and declares a vector; `name` describes computed values.
    pub(crate) fn add_vector(&mut self, name: &str, values: &[f32]) -> Result<VectorId, LoadError> {
        self.store.store_vector(values)?;
        Ok(self.weights.add_vector(VectorInfo {
            name: name.to_owned(),
            len: values.len(),
            part: self.part,
        }))
    }

    pub(crate) fn norm_if(&mut self, is_present: bool, name: &str) -> Result<Option<NormId>, LoadError> {
        if !is_present {
            return Ok(None);
        }
        let descriptor = self.descriptor;
        self.norm(name, descriptor.n_embd, descriptor.norm).map(Some)
    }

    pub(crate) fn norm(
        &mut self,
        name: &str,
        width: usize,
        norm: NormDescriptor,
    ) -> Result<NormId, LoadError> {
        Ok(Norm {
            kind: norm.kind,
            width,
            weight: self.vector(&format!("{name}.weight"), width, Presence::Required)?,
            bias: self.vector(&format!("{name}.bias"), width, norm.bias)?,
            eps: norm.eps,
        })
    }

    pub(crate) fn linear(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        bias: Presence,
    ) -> Result<LinearId, LoadError> {
        self.linear_part(name, RowsOf::all(n_out), n_in, bias)
    }

    /// Loads some rows of a matrix, and the same part of its bias.
    pub(crate) fn linear_part(
        &mut self,
        name: &str,
        part: RowsOf,
        n_in: usize,
        bias: Presence,
    ) -> Result<LinearId, LoadError> {
        self.linear_parts(name, &[part], n_in, bias)
    }

    /// Loads some rows of a matrix, part after part, and the same parts of its bias.
    pub(crate) fn linear_parts(
        &mut self,
        name: &str,
        parts: &[RowsOf],
        n_in: usize,
        bias: Presence,
    ) -> Result<LinearId, LoadError> {
        let bias = match self.values(&format!("{name}.bias"), parts[0].n_total, bias)? {
            Some(values) => {
                let runs = runs_of(parts).map(|(start, n_rows)| &values[start..start + n_rows]);
                let values: Vec<f32> = runs.flatten().copied().collect();
                Some(self.add_vector(&format!("{name}.bias"), &values)?)
            }
            None => None,
        };
        Ok(Linear {
            matrix: self.matrix_parts(&format!("{name}.weight"), parts, n_in, MatrixUsage::Linear)?,
            bias,
            n_out: parts.iter().map(RowsOf::n_out).sum(),
            n_in,
            adapter_place: self.adapter_place(name, parts, n_in),
        })
    }

    /// Registers a weight for adapters if it belongs to a layer or the head, and returns its index.
    fn adapter_place(&mut self, name: &str, parts: &[RowsOf], n_in: usize) -> Option<u32> {
        if name != "output" && !name.starts_with("blk.") {
            return None;
        }
        let place = self.adaptable.len() as u32;
        (self.adaptable).push(AdaptableWeight::new(format!("{name}.weight"), parts, n_in));
        Some(place)
    }

    /// Returns the file's name of a tensor, given its usual name.
    fn file_name<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let names = self.descriptor.tensor_names;
        if names.is_empty() || self.source.contains(name) {
            return Cow::Borrowed(name);
        }
        // The part follows `blk.`, the layer and a dot.
        let part_start = match name.strip_prefix("blk.").and_then(|rest| rest.find('.')) {
            Some(dot) => "blk.".len() + dot + 1,
            None => 0,
        };
        let (layer, part) = name.split_at(part_start);
        match names.iter().find(|(usual, _)| *usual == part) {
            Some((_, own)) => Cow::Owned(format!("{layer}{own}")),
            None => Cow::Borrowed(name),
        }
    }

    fn tensor(&self, name: &str) -> Result<WeightTensor<'a>, LoadError> {
        let source = self.source;
        source
            .tensor(&self.file_name(name))
            .ok_or_else(|| LoadError::MissingTensor {
                name: name.to_owned(),
            })
    }

    /// Loads a required tensor as one vector. `dims` are its dimensions without those of 1.
    pub(crate) fn required_vector(&mut self, name: &str, dims: &[usize]) -> Result<VectorId, LoadError> {
        let values = self.all_values(name, dims)?;
        self.add_vector(name, &values)
    }

    /// Loads a tensor `[n_rows, n_cols]` as the concatenation of its columns.
    pub(crate) fn transposed(
        &mut self,
        name: &str,
        [n_rows, n_cols]: [usize; 2],
    ) -> Result<VectorId, LoadError> {
        let values = self.all_values(name, &[n_cols, n_rows])?;
        let columns = (0..n_cols).flat_map(|col| values.iter().skip(col).step_by(n_cols).copied());
        let columns: Vec<f32> = columns.collect();
        self.add_vector(name, &columns)
    }

    /// Returns the numbers of a required tensor. `dims` are its dimensions without those of 1.
    pub(crate) fn all_values(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name)?;
        let is_wide = |dim: &usize| *dim != 1;
        if !(tensor.dims.iter().copied().filter(is_wide)).eq(dims.iter().copied().filter(is_wide)) {
            return Err(LoadError::WrongShape {
                name: name.to_owned(),
                expected: dims.to_vec(),
                found: tensor.dims,
            });
        }
        self.finite_values(name, &tensor)
    }

    pub(crate) fn matrix(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        usage: MatrixUsage,
    ) -> Result<MatrixId, LoadError> {
        self.matrix_parts(name, &[RowsOf::all(n_out)], n_in, usage)
    }

    /// Uploads some rows of a matrix; a single part is not copied.
    fn matrix_parts(
        &mut self,
        name: &str,
        parts: &[RowsOf],
        n_in: usize,
        usage: MatrixUsage,
    ) -> Result<MatrixId, LoadError> {
        let tensor = self.tensor(name)?;
        let n_total = parts[0].n_total;
        check_shape(name, &tensor.dims, &[n_in, n_total])?;
        let row_bytes = tensor.bytes.len() / n_total;
        let n_out = parts.iter().map(RowsOf::n_out).sum();
        let (gathered, view);
        let bytes = if let [part] = parts {
            let first = part.first * row_bytes;
            if part.n_runs == 1 {
                tensor.bytes.slice(first..first + n_out * row_bytes)
            } else {
                view = part.view(tensor.bytes, row_bytes);
                TensorBytes::in_file(&view, 0, n_out * row_bytes)
            }
        } else {
            let mut rows = vec![0; n_out * row_bytes];
            let mut rest = rows.as_mut_slice();
            for (start, n_rows) in runs_of(parts) {
                let (run, others) = rest.split_at_mut(n_rows * row_bytes);
                let read = tensor.bytes.read_into(start * row_bytes, run);
                read.map_err(|source| LoadError::ReadTensor {
                    name: name.to_owned(),
                    source,
                })?;
                rest = others;
            }
            gathered = rows;
            gathered.as_slice().into()
        };
        let matrix = self.add_matrix(&MatrixData {
            name,
            ty: tensor.ty,
            n_out,
            n_in,
            bytes,
            usage,
        })?;
        self.mark_used(name, tensor.bytes.len());
        Ok(matrix)
    }

    /// Returns whether a matrix with `n_rows` rows exists.
    pub(crate) fn has_rows(&self, name: &str, n_rows: usize) -> bool {
        let tensor = self.source.tensor(&self.file_name(name));
        tensor.is_some_and(|tensor| tensor.dims.get(1) == Some(&n_rows))
    }

    pub(crate) fn vector(
        &mut self,
        name: &str,
        len: usize,
        presence: Presence,
    ) -> Result<Option<VectorId>, LoadError> {
        match self.values(name, len, presence)? {
            Some(values) => self.add_vector(name, &values).map(Some),
            None => Ok(None),
        }
    }

    /// Loads the first row of a matrix as a vector.
    pub(crate) fn first_row(
        &mut self,
        name: &str,
        width: usize,
        presence: Presence,
    ) -> Result<Option<VectorId>, LoadError> {
        let tensor = if presence == Presence::Absent {
            None
        } else {
            self.source.tensor(name)
        };
        let n_rows = tensor.map_or(1, |tensor| tensor.dims.get(1).copied().unwrap_or(1));
        match self.numbers(name, &[width, n_rows], presence)? {
            Some(values) => self.add_vector(name, &values[..width]).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the numbers of a vector, checked.
    pub(crate) fn values(
        &mut self,
        name: &str,
        len: usize,
        presence: Presence,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        self.numbers(name, &[len], presence)
    }

    /// Returns the numbers of an unquantized tensor, checked.
    fn numbers(
        &mut self,
        name: &str,
        dims: &[usize],
        presence: Presence,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        if presence == Presence::Absent {
            return Ok(None);
        }
        let source = self.source;
        let Some(tensor) = source.tensor(&self.file_name(name)) else {
            if presence == Presence::Optional {
                return Ok(None);
            }
            return Err(LoadError::MissingTensor {
                name: name.to_owned(),
            });
        };
        check_shape(name, &tensor.dims, dims)?;
        self.finite_values(name, &tensor).map(Some)
    }

    fn finite_values(&mut self, name: &str, tensor: &WeightTensor<'_>) -> Result<Vec<f32>, LoadError> {
        let bytes = tensor.bytes.to_vec().map_err(|source| LoadError::ReadTensor {
            name: name.to_owned(),
            source,
        })?;
        let values = decode_vector(name, tensor.ty, &bytes)?;
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(LoadError::NotFinite {
                name: name.to_owned(),
                index,
                value: values[index],
            });
        }
        self.mark_used(name, tensor.bytes.len());
        Ok(values)
    }

    /// Loads each row of an unquantized matrix as a vector.
    pub(crate) fn rows<const N: usize>(
        &mut self,
        name: &str,
        width: usize,
    ) -> Result<[VectorId; N], LoadError> {
        let values = self.numbers(name, &[width, N], Presence::Required)?;
        let values = values.expect("what is required is there or an error");
        let mut rows = Vec::with_capacity(N);
        for row in values.chunks_exact(width) {
            rows.push(self.add_vector(name, row)?);
        }
        Ok(rows.try_into().expect("the shape was checked"))
    }

    /// Loads the rows of an unquantized matrix as one vector.
    pub(crate) fn table(&mut self, name: &str, n_rows: usize, width: usize) -> Result<VectorId, LoadError> {
        let values = self.numbers(name, &[width, n_rows], Presence::Required)?;
        let values = values.expect("what is required is there or an error");
        self.add_vector(name, &values)
    }

    fn mark_used(&mut self, name: &str, n_bytes: usize) {
        if self.used.insert(self.file_name(name).into_owned()) {
            self.progress.n_bytes_done += n_bytes;
            (self.on_progress)(self.progress);
        }
    }

    pub(crate) fn check_all_used(&self) -> Result<(), LoadError> {
        let unused = (self.source.infos().into_iter())
            .map(|info| info.name)
            .find(|name| !self.used.contains(name) && !is_redundant(name, self.descriptor));
        match unused {
            None => Ok(()),
            Some(name) => Err(LoadError::UnusedTensor {
                name,
                arch: self.descriptor.arch.clone(),
            }),
        }
    }
}

/// Returns a norm without weights.
pub(crate) fn plain_norm(norm: NormDescriptor, width: usize) -> NormId {
    Norm {
        kind: norm.kind,
        width,
        weight: None,
        bias: None,
        eps: norm.eps,
    }
}

/// Returns whether a tensor is redundant or not used by decoding.
fn is_redundant(name: &str, descriptor: &Descriptor) -> bool {
    // Early converters stored the plain rope frequencies; some files repeat a tied head.
    name.ends_with(".attn_rot_embd")
        || name.ends_with(".rotary_emb.inv_freq")
        || (descriptor.head == OutputHead::Tied && name == "output.weight")
        || (descriptor.ignorable.iter()).any(|ignorable| match ignorable {
            Ignorable::Tensor(ignorable) => name == ignorable,
            Ignorable::OfLayers(part) => (name.strip_prefix("blk."))
                .and_then(|rest| rest.split_once('.'))
                .is_some_and(|(_, rest)| rest == part),
            Ignorable::LayersFrom(first) => (name.strip_prefix("blk."))
                .and_then(|rest| rest.split_once('.')?.0.parse().ok())
                .is_some_and(|layer_idx: usize| layer_idx >= *first),
        })
}

fn check_shape(name: &str, found: &[usize], expected: &[usize]) -> Result<(), LoadError> {
    // Trailing dimensions of 1 are ignored.
    let significant = |dims: &[usize]| -> Vec<usize> {
        let len = dims.iter().rposition(|&dim| dim != 1).map_or(1, |last| last + 1);
        dims[..len.min(dims.len())].to_vec()
    };
    if significant(found) == significant(expected) {
        return Ok(());
    }
    Err(LoadError::WrongShape {
        name: name.to_owned(),
        expected: expected.to_vec(),
        found: found.to_vec(),
    })
}

/// Decodes the numbers of a vector. Integers and F64 are rare; like everything added to activations, they
/// become f32.
fn decode_vector(name: &str, ty: TensorType, bytes: &[u8]) -> Result<Vec<f32>, LoadError> {
    fn numbers<const N: usize>(bytes: &[u8], decode: fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|bytes| decode(*bytes)).collect()
    }
    Ok(match ty {
        TensorType::F32 => numbers(bytes, f32::from_le_bytes),
        TensorType::F16 => numbers(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        TensorType::BF16 => numbers(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        TensorType::F64 => numbers(bytes, |bytes| f64::from_le_bytes(bytes) as f32),
        TensorType::I8 => numbers(bytes, |bytes| f32::from(i8::from_le_bytes(bytes))),
        TensorType::I16 => numbers(bytes, |bytes| f32::from(i16::from_le_bytes(bytes))),
        TensorType::I32 => numbers(bytes, |bytes| i32::from_le_bytes(bytes) as f32),
        TensorType::I64 => numbers(bytes, |bytes| i64::from_le_bytes(bytes) as f32),
        other => {
            return Err(LoadError::VectorType {
                name: name.to_owned(),
                found: other.name(),
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_every_plain_type_are_their_numbers() {
        let check = |ty, bytes: &[u8]| assert_eq!(decode_vector("a", ty, bytes).unwrap(), [-3.0], "{ty}");
        check(TensorType::F32, &(-3f32).to_le_bytes());
        check(TensorType::F16, &f16::from_f32(-3.0).to_le_bytes());
        check(TensorType::BF16, &bf16::from_f32(-3.0).to_le_bytes());
        check(TensorType::F64, &(-3f64).to_le_bytes());
        check(TensorType::I8, &(-3i8).to_le_bytes());
        check(TensorType::I16, &(-3i16).to_le_bytes());
        check(TensorType::I32, &(-3i32).to_le_bytes());
        check(TensorType::I64, &(-3i64).to_le_bytes());
        assert!(decode_vector("a", TensorType::Q4_0, &[0; 18]).is_err());
    }
}
