//! [`ConvertError`]: everything that can be wrong with a model that is converted, or with how.

use std::{cmp::Ordering, io, path::PathBuf};

use tokenmill_gguf::{GgufError, TensorType};
use tokenmill_quant::QuantError;

/// Why a model was not converted. No output file was left behind.
///
/// A message is whole: where an error has another below it, the message includes that one's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A name that is no preset.
    #[error("`{name}` is no type of file; known are {}", known.join(", "))]
    UnknownPreset {
        /// The name.
        name: String,
        /// The names of all presets.
        known: Vec<&'static str>,
    },
    /// A pattern for names of tensors that is no regular expression.
    #[error("`{pattern}` is no regular expression: {source}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// Why.
        source: Box<regex::Error>,
    },
    /// A GGUF file that cannot be read or written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Rows that cannot be decoded or encoded.
    #[error("tensor `{name}`: {source}")]
    Quant {
        /// The tensor.
        name: String,
        /// Why.
        source: QuantError,
    },
    /// A tensor's bytes could not be read.
    #[error("cannot read tensor `{name}`: {source}")]
    ReadTensor {
        /// The tensor.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another file could not be read or written.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Too little room on the disk.
    #[error("{} has room for {free_bytes} bytes, and {needed_bytes} are needed", folder.display())]
    NoRoom {
        /// Where the files go.
        folder: PathBuf,
        /// What the files take.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
    },
    /// The input is to be overwritten.
    #[error("{path} is the input; write to another file")]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// A weight that is no number.
    #[error(
        "tensor `{name}` has {value} at row {row}; the file's weights are damaged, fetch or convert it again"
    )]
    NotFinite {
        /// The tensor.
        name: String,
        /// The row.
        row: usize,
        /// What stands there.
        value: f32,
    },
    /// Weights that are too large for a type's scales.
    #[error("tensor `{name}` has weights at row {row} that are too large for {ty}; use BF16 or F32 for it")]
    TooLarge {
        /// The tensor.
        name: String,
        /// The row.
        row: usize,
        /// The type.
        ty: TensorType,
    },
    /// A tensor that has lost precision already.
    #[error(
        "tensor `{name}` is quantized already, as {ty}{}; take the original file, or say that quantizing again is allowed",
        gain(*ty, *to)
    )]
    Requantized {
        /// The tensor.
        name: String,
        /// Its type.
        ty: TensorType,
        /// What it was to be.
        to: TensorType,
    },
    /// A tensor whose layer is not in its name, or is none of the model.
    #[error("tensor `{name}` belongs to none of the {n_layers} layers of the model")]
    NoLayer {
        /// The tensor.
        name: String,
        /// Layers of the model.
        n_layers: usize,
    },
    /// Rows that are not whole blocks of a type, which has no substitute.
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
    /// Rows that are not whole blocks of a type that was asked for by name.
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
    /// A type of few bits without an importance matrix.
    #[error(
        "tensor `{name}` is to be {ty}, which is worth nothing without an importance matrix; give one, or choose a larger type"
    )]
    NeedsImportance {
        /// The tensor.
        name: String,
        /// The type.
        ty: TensorType,
    },
    /// A file that is no importance matrix.
    #[error("{path} is no importance matrix: {reason}")]
    NoImportanceMatrix {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An importance matrix of another model.
    #[error(
        "the importance matrix belongs to another model: none of its {n_entries} entries has the name of a tensor"
    )]
    OtherModel {
        /// Entries of the matrix.
        n_entries: usize,
    },
    /// An importance matrix for a type that weighs no errors.
    #[error(
        "an importance matrix changes nothing in {out}; give a type that `quantize` lists, such as q4_k_m"
    )]
    ImportanceUnused {
        /// The type.
        out: String,
    },
    /// An entry of an importance matrix that does not fit its tensor.
    #[error(
        "the importance matrix belongs to another model: tensor `{name}` needs {expected} numbers and has {found}"
    )]
    ImportanceShape {
        /// The tensor.
        name: String,
        /// Numbers it needs.
        expected: usize,
        /// Numbers there are.
        found: usize,
    },
    /// An importance matrix without any entry for tensors of a kind, or for a layer.
    #[error(
        "the importance matrix was measured on another model, or on too little text: it has nothing for any {}, {n_lacking} of \
         {n_quantized} tensors in all",
        lacking(kinds, layers)
    )]
    ImportanceLacks {
        /// Names of tensors, without their layer, that have no entry in any layer.
        kinds: Vec<String>,
        /// Layers that have no entry.
        layers: Vec<usize>,
        /// Tensors of layers that are to be quantized and have no entry.
        n_lacking: usize,
        /// Tensors of layers that are to be quantized.
        n_quantized: usize,
    },
    /// An importance matrix with tensors that the model has none of.
    #[error(
        "the importance matrix was measured on another model: it has entries for {}, and this model has no such tensors",
        lacking(kinds, &[]).replace(" or ", " and ")
    )]
    ImportanceKinds {
        /// Names of tensors, without their layer.
        kinds: Vec<String>,
    },
    /// An importance matrix of a model with more layers.
    #[error(
        "the importance matrix was measured on another model: it has entries for {n_measured} layers, and this model has {n_layers}"
    )]
    ImportanceLayers {
        /// Layers of the matrix.
        n_measured: usize,
        /// Layers of the model.
        n_layers: usize,
    },
    /// The work was stopped by its caller.
    #[error("stopped before the end; nothing was written")]
    Stopped,
}

/// What another type would give that is no smaller.
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

/// What an importance matrix lacks, in words: kinds of tensors, or else layers.
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
