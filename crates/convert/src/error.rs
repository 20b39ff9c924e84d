//! [`ConvertError`]: every error in a model to be converted, or in the options.

use std::{cmp::Ordering, io, path::PathBuf};

use tokenmill_gguf::{GgufError, TensorType};
use tokenmill_quant::QuantError;

/// The reason why a model was not converted. No output file was left behind.
///
/// Messages are complete: the message of an error with a source includes that of the source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The name is not a preset.
    #[error("`{name}` is not a file type; known are {}", known.join(", "))]
    UnknownPreset {
        /// The name.
        name: String,
        /// The names of all presets.
        known: Vec<&'static str>,
    },
    /// A pattern for tensor names is not a regular expression.
    #[error("`{pattern}` is not a regular expression: {source}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// The error in the pattern.
        source: Box<regex::Error>,
    },
    /// A GGUF file cannot be read or written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Rows cannot be decoded or encoded.
    #[error("tensor `{name}`: {source}")]
    Quant {
        /// The tensor.
        name: String,
        /// The error.
        source: QuantError,
    },
    /// A tensor's bytes could not be read.
    #[error("cannot read tensor `{name}`: {source}")]
    ReadTensor {
        /// The tensor.
        name: String,
        /// The I/O error.
        source: io::Error,
    },
    /// Another file could not be read or written.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The disk has too little room.
    #[error("{} has room for {free_bytes} bytes, and {needed_bytes} are needed", folder.display())]
    NoRoom {
        /// The folder of the output.
        folder: PathBuf,
        /// Bytes that the files need.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// The output would overwrite the input.
    #[error("{path} is the input; write to another file")]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// A weight is NaN or infinite.
    #[error(
        "tensor `{name}` has {value} at row {row}; the file's weights are damaged, fetch or convert it again"
    )]
    NotFinite {
        /// The tensor.
        name: String,
        /// The row.
        row: usize,
        /// The value.
        value: f32,
    },
    /// Weights are too large for a type's scales.
    #[error("tensor `{name}` has weights at row {row} that are too large for {ty}; use BF16 or F32 for it")]
    TooLarge {
        /// The tensor.
        name: String,
        /// The row.
        row: usize,
        /// The type.
        ty: TensorType,
    },
    /// A tensor is already quantized.
    #[error(
        "tensor `{name}` is quantized already, as {ty}{}; take the original file",
        gain(*ty, *to)
    )]
    Requantized {
        /// The tensor.
        name: String,
        /// Its type.
        ty: TensorType,
        /// The requested type.
        to: TensorType,
    },
    /// A tensor's name does not give its layer, or the layer does not exist.
    #[error("tensor `{name}` belongs to none of the {n_layers} layers of the model")]
    NoLayer {
        /// The tensor.
        name: String,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// Rows are not whole blocks of a type that has no substitute.
    #[error(
        "tensor `{name}` has rows of {row_len}, which are not whole blocks of {ty}, and nothing stands in for it; choose another type"
    )]
    NoFallback {
        /// The tensor.
        name: String,
        /// The type.
        ty: TensorType,
        /// Length of its rows.
        row_len: usize,
    },
    /// Rows are not whole blocks of a type requested by name.
    #[error(
        "tensor `{name}` has rows of {row_len}, which are not whole blocks of {ty}; choose another type for it"
    )]
    PartialBlocks {
        /// The tensor.
        name: String,
        /// The type.
        ty: TensorType,
        /// Length of its rows.
        row_len: usize,
    },
    /// A type of few bits is requested without an importance matrix.
    #[error("tensor `{name}` cannot be {ty} without an importance matrix; give one, or choose a larger type")]
    NeedsImportance {
        /// The tensor.
        name: String,
        /// The type.
        ty: TensorType,
    },
    /// The file is not an importance matrix.
    #[error("{path} is not an importance matrix: {reason}")]
    NoImportanceMatrix {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The importance matrix belongs to another model.
    #[error(
        "the importance matrix belongs to another model: none of its {n_entries} entries has the name of a tensor"
    )]
    OtherModel {
        /// Number of entries in the matrix.
        n_entries: usize,
    },
    /// An importance matrix is given for a type that does not weigh errors.
    #[error(
        "an importance matrix changes nothing in {out}; give a type that `quantize` lists, such as q4_k_m"
    )]
    ImportanceUnused {
        /// The type.
        out: String,
    },
    /// An entry of the importance matrix does not fit its tensor.
    #[error(
        "the importance matrix belongs to another model: tensor `{name}` needs {expected} numbers and has {found}"
    )]
    ImportanceShape {
        /// The tensor.
        name: String,
        /// Number of values needed.
        expected: usize,
        /// Number of values found.
        found: usize,
    },
    /// The importance matrix has no entry for any tensor of some kind, or of some layer.
    #[error(
        "the importance matrix was measured on another model, or on too little text: it has nothing for any {}, {n_lacking} of \
         {n_quantized} tensors in all",
        lacking(kinds, layers)
    )]
    ImportanceLacks {
        /// Tensor names, without their layer, that have no entry in any layer.
        kinds: Vec<String>,
        /// Layers without an entry.
        layers: Vec<usize>,
        /// Number of tensors in layers that are to be quantized and have no entry.
        n_lacking: usize,
        /// Number of tensors in layers that are to be quantized.
        n_quantized: usize,
    },
    /// The importance matrix has kinds of tensors that the model does not have.
    #[error(
        "the importance matrix was measured on another model: it has entries for {}, and this model has no such tensors",
        lacking(kinds, &[]).replace(" or ", " and ")
    )]
    ImportanceKinds {
        /// Tensor names, without their layer.
        kinds: Vec<String>,
    },
    /// The importance matrix belongs to a model with more layers.
    #[error(
        "the importance matrix was measured on another model: it has entries for {n_measured} layers, and this model has {n_layers}"
    )]
    ImportanceLayers {
        /// Number of layers in the matrix.
        n_measured: usize,
        /// Number of layers in the model.
        n_layers: usize,
    },
    /// The caller stopped the work.
    #[error("stopped before the end; nothing was written")]
    Stopped,
}

/// Describes the consequence if the requested type is no smaller.
fn gain(ty: TensorType, to: TensorType) -> String {
    let block_bytes = |ty: TensorType| ty.row_bytes(ty.block_len());
    let bytes_of =
        |ty: TensorType, other: TensorType| block_bytes(ty).unwrap_or(0).saturating_mul(other.block_len());
    let what = match bytes_of(to, ty).cmp(&bytes_of(ty, to)) {
        Ordering::Less => return String::new(),
        Ordering::Equal => "as large",
        Ordering::Greater => "larger",
    };
    format!(", and as {to} it would be {what} and no better")
}

/// Describes the gaps of an importance matrix: kinds of tensors, or else layers.
fn lacking(kinds: &[String], layers: &[usize]) -> String {
    const MAX_SHOWN: usize = 4;
    let (mut shown, n, what): (Vec<String>, _, _) = if kinds.is_empty() {
        let shown = layers
            .iter()
            .map(|layer_idx| format!("tensor of layer {layer_idx}"));
        (shown.take(MAX_SHOWN).collect(), layers.len(), "layers")
    } else {
        let shown = kinds.iter().map(|kind| format!("`{kind}`"));
        (shown.take(MAX_SHOWN).collect(), kinds.len(), "kinds")
    };
    let last = if n > MAX_SHOWN {
        Some(format!("{} more {what}", n - MAX_SHOWN))
    } else if n > 1 {
        shown.pop()
    } else {
        None
    };
    match last {
        Some(last) => format!("{} or {last}", shown.join(", ")),
        None => shown.join(""),
    }
}
