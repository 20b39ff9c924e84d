//! [`LoadError`]: the reason why a model could not be opened or loaded.
//!
//! One enum covers everything before the first step. Errors of a step are
//! [`StepError`](tokenmill_backend::StepError) and [`RowError`](tokenmill_backend::RowError).

use std::path::PathBuf;

use tokenmill_backend::BackendError;
use tokenmill_gguf::{GgufError, TensorType};

use crate::WeightSource;

/// The reason why a model could not be opened or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file is not a usable GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The device reported an error.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The bytes of a tensor could not be read.
    #[error("cannot read tensor `{name}`: {source}")]
    ReadTensor {
        /// The tensor.
        name: String,
        /// The I/O error, which names the file.
        source: std::io::Error,
    },
    /// A file in the weights' folder could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The sum of the scaled control vectors is not finite.
    #[error(
        "the control vectors of layer {layer} add up to a number that is not finite; give smaller scales"
    )]
    InfiniteControl {
        /// Layer after which they are added.
        layer: usize,
    },
    /// An adapter's file cannot be used.
    #[error("{}: {reason}", path.display())]
    BadAdapter {
        /// The file or folder.
        path: PathBuf,
        /// Cause of the error.
        reason: String,
    },
    /// A tensor cannot be loaded in the requested type.
    #[error("tensor `{name}` of type {} with rows of {row_len} cannot be quantized as {}", from.name(), to.name())]
    NotEncodable {
        /// The tensor.
        name: String,
        /// The type in the folder.
        from: TensorType,
        /// The requested type.
        to: TensorType,
        /// Number of values in a row.
        row_len: usize,
    },
    /// A GGUF file is an importance matrix, which `quantize` uses to weigh errors.
    #[error("this file is an importance matrix, not a model")]
    IsImportanceMatrix,
    /// A GGUF file is an adapter: changes to a model's weights.
    #[error("this file is an adapter, not a model")]
    IsAdapter,
    /// A GGUF file holds only the MTP layers of a model.
    #[error("this file holds a model's MTP layers alone, not the model")]
    IsNextnAlone,
    /// A file given for its MTP layer has none.
    #[error("this file has no MTP layer")]
    NoNextn,
    /// An MTP layer belongs to another model.
    #[error("this MTP layer is another model's: its {what} is {found}, and the model's {expected}")]
    NextnOfOther {
        /// Property that differs.
        what: &'static str,
        /// Value in the layer's file.
        found: String,
        /// Value of the model.
        expected: String,
    },
    /// The architecture is not in the table.
    #[error("architecture `{found}` is not supported; supported are {}", supported.join(", "))]
    UnknownArchitecture {
        /// The architecture in the file.
        found: String,
        /// The names of all supported architectures.
        supported: Vec<&'static str>,
    },
    /// The architecture is supported, but not this variant.
    #[error("architecture `{arch}` with {feature} is not supported")]
    UnsupportedFeature {
        /// The architecture.
        arch: String,
        /// Missing feature.
        feature: String,
    },
    /// A folder's network has a property that GGUF files of its architecture cannot express.
    #[error(transparent)]
    NotInGguf(Box<NotInGguf>),
    /// The file made from a folder could not be loaded.
    #[error("a GGUF file made of this folder would not load: {source}")]
    FileWouldNotLoad {
        /// The load error.
        source: Box<LoadError>,
    },
    /// The number of ranks does not divide some part of the network.
    #[error("{what} cannot be divided among {n_ranks} devices{}", only_among(fitting))]
    NotDivisible {
        /// The part, with its sizes.
        what: String,
        /// Number of ranks.
        n_ranks: usize,
        /// Numbers of ranks that would work, smallest first.
        fitting: Vec<usize>,
    },
    /// A rank's columns of a tensor end within a block.
    #[error(
        "a rank's {n_columns} columns of tensor `{name}` are not whole blocks of {ty}, which have {block_len} each"
    )]
    NotWholeBlocks {
        /// The tensor.
        name: String,
        /// Its type.
        ty: &'static str,
        /// Values per block.
        block_len: usize,
        /// Number of columns of the rank.
        n_columns: usize,
    },
    /// A size or number of the configuration is invalid.
    #[error("the model's {what} is {found}, expected {expected}")]
    BadValue {
        /// Name of the value.
        what: &'static str,
        /// Its value.
        found: String,
        /// Expected value.
        expected: &'static str,
    },
    /// A value is invalid; the error names its key in the file.
    #[error("{source} (key `{key}`)")]
    BadKey {
        /// The key.
        key: String,
        /// Cause of the error.
        source: Box<LoadError>,
    },
    /// A key of a GGUF file changes the network in an unsupported way.
    #[error("metadata key `{key}` is {found}, which is not supported in a `{arch}` network")]
    UnusedKey {
        /// Name of the key.
        key: String,
        /// Value in the file.
        found: String,
        /// Architecture of the file.
        arch: String,
    },
    /// A configuration file is invalid.
    #[error("{}: {reason}", path.display())]
    BadConfig {
        /// The file.
        path: PathBuf,
        /// Cause of the error.
        reason: String,
    },
    /// The network needs a tensor that the file lacks.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor is invalid whose name in its source differs from its GGUF name.
    #[error("{error} (`{own_name}` in the folder)")]
    OfFolder {
        /// The folder's name of the tensor.
        own_name: String,
        /// Cause of the error. The message includes its text, so it is not the `source`.
        error: Box<LoadError>,
    },
    /// A tensor has other dimensions than the network needs.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}")]
    WrongShape {
        /// The tensor.
        name: String,
        /// Dimensions needed, the contiguous one first.
        expected: Vec<usize>,
        /// Dimensions found.
        found: Vec<usize>,
    },
    /// The metadata and a tensor disagree on the number of experts.
    #[error("tensor `{name}` holds {found} experts, but the model's expert count is {expected}")]
    ExpertCount {
        /// The tensor.
        name: String,
        /// Value in the metadata.
        expected: usize,
        /// Experts in the tensor.
        found: usize,
    },
    /// The metadata and the tensors disagree on the number of layers.
    #[error("metadata key `{key}` is {expected}, but the file has tensors of {found} layers")]
    LayerCount {
        /// Value in the metadata.
        expected: usize,
        /// Number of layers up to the last one with tensors.
        found: usize,
        /// The key.
        key: String,
    },
    /// A vector (norm, bias) has a type that vectors never have.
    #[error("tensor `{name}` has type {found}, expected floats or integers that are no blocks")]
    VectorType {
        /// The tensor.
        name: String,
        /// Its type.
        found: &'static str,
    },
    /// A number of a vector is NaN or infinite.
    #[error("tensor `{name}` holds {value} at index {index}; the file is damaged")]
    NotFinite {
        /// The tensor.
        name: String,
        /// Index of the number.
        index: usize,
        /// The number.
        value: f32,
    },
    /// A number of a vector must be positive but is not.
    #[error("tensor `{name}` holds {value} at index {index}, expected numbers above 0; the file is damaged")]
    NotPositive {
        /// The tensor.
        name: String,
        /// Index of the number.
        index: usize,
        /// The number.
        value: f32,
    },
    /// The file has a tensor that the network would ignore, so its output would be wrong.
    #[error("tensor `{name}` has no place in a `{arch}` network; this variant is not supported")]
    UnusedTensor {
        /// The tensor.
        name: String,
        /// The architecture.
        arch: String,
    },
    /// An option of the load cannot be granted.
    #[error("{} is {found}, expected {expected}", in_words(option))]
    BadOption {
        /// The option.
        option: &'static str,
        /// Its value.
        found: usize,
        /// Expected value.
        expected: String,
    },
}

/// Names an option of a load.
fn in_words(option: &str) -> String {
    match option {
        "n_ctx" => "the size of the context".to_owned(),
        "n_pages" => "the size of all contexts together, in pages of 16 tokens,".to_owned(),
        "max_batch_tokens" => "the number of tokens in a step".to_owned(),
        _ => format!("option `{option}`"),
    }
}

impl LoadError {
    /// Returns the GGUF name of the tensor that the error is about.
    fn tensor(&self) -> Option<&str> {
        match self {
            Self::ReadTensor { name, .. }
            | Self::NotEncodable { name, .. }
            | Self::NotWholeBlocks { name, .. }
            | Self::MissingTensor { name }
            | Self::WrongShape { name, .. }
            | Self::ExpertCount { name, .. }
            | Self::VectorType { name, .. }
            | Self::NotFinite { name, .. }
            | Self::NotPositive { name, .. }
            | Self::UnusedTensor { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Returns the error with the tensor's name in the source of the weights.
    pub(crate) fn with_own_name(self, weights: &dyn WeightSource) -> Self {
        match self.tensor().and_then(|name| weights.own_name(name)) {
            Some(own_name) => Self::OfFolder {
                own_name,
                error: Box::new(self),
            },
            None => self,
        }
    }

    /// Returns the error without the folder's name of its tensor.
    pub fn without_own_name(&self) -> &Self {
        match self {
            Self::OfFolder { error, .. } => error,
            other => other,
        }
    }
}

/// Properties of a folder's network that a GGUF file of its architecture cannot express.
#[derive(Debug, thiserror::Error)]
#[error("a GGUF file of `{arch}` cannot describe this folder: {}", told(fields))]
pub struct NotInGguf {
    /// The architecture.
    pub arch: &'static str,
    /// At least one field, each for the first layer that has it.
    pub fields: Vec<FieldNotInGguf>,
}

/// A field that would have another value in a file.
#[derive(Debug)]
pub struct FieldNotInGguf {
    /// The field of [`Descriptor`](crate::Descriptor); a rope's field includes its layer.
    pub field: String,
    /// Value in the folder.
    pub folder: String,
    /// Value that a reader of the file would assume.
    pub file: String,
    /// The configuration keys that set the field, in words; empty if unknown.
    pub said_by: String,
}

/// Formats the first fields for a message.
fn told(fields: &[FieldNotInGguf]) -> String {
    const MAX_TOLD: usize = 3;
    let of_field = |field: &FieldNotInGguf| {
        let FieldNotInGguf {
            field,
            folder,
            file,
            said_by,
        } = field;
        let before = if said_by.is_empty() { "" } else { "; " };
        format!("`{field}` is {folder} in the folder, and readers of the file take {file}{before}{said_by}")
    };
    let shown: Vec<String> = fields.iter().take(MAX_TOLD).map(of_field).collect();
    let text = shown.join("; besides, ");
    match fields.len().saturating_sub(MAX_TOLD) {
        0 => text,
        n_more => format!("{text}; and {n_more} more fields"),
    }
}

/// Refuses a value that is not positive and finite.
pub(crate) fn check_positive(what: &'static str, found: f32) -> Result<(), LoadError> {
    check(what, found, found > 0.0 && found.is_finite(), "a positive number")
}

/// Returns an error with the expected value unless `is_right` holds.
pub(crate) fn check(
    what: &'static str,
    found: impl ToString + Copy,
    is_right: bool,
    expected: &'static str,
) -> Result<(), LoadError> {
    if is_right {
        return Ok(());
    }
    Err(LoadError::BadValue {
        what,
        found: found.to_string(),
        expected,
    })
}

/// Formats the numbers of devices that would work.
fn only_among(numbers: &[usize]) -> String {
    let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match &words[..] {
        [] | [_] => String::new(),
        [first @ .., last] => format!(", only among {} or {last}", first.join(", ")),
    }
}
