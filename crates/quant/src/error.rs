//! [`QuantError`]: every error in a caller's arguments.

use tokenmill_gguf::TensorType;

/// The reason why a row was refused. Nothing was computed or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The table has no row for this type: its tensors can be listed, but not computed.
    #[error("tensor type {} cannot be computed by this version; convert the model to another type", .0.name())]
    UnsupportedType(TensorType),
    /// Values cannot be encoded in this type without an importance matrix.
    #[error("{} takes an importance matrix; give one, or use IQ3_S or Q2_K", .0.name())]
    NoEncoder(TensorType),
    /// A row does not consist of whole blocks.
    #[error("a row of {found} values is not a whole number of {format} blocks of {block_len}")]
    PartialBlock {
        /// The format's name.
        format: &'static str,
        /// Number of values per block.
        block_len: usize,
        /// Number of values in the row.
        found: usize,
    },
    /// A row is so long that its size in bytes overflows.
    #[error("a row of {found} values is too long for this machine")]
    RowTooLong {
        /// Number of values in the row.
        found: usize,
    },
    /// A byte buffer has the wrong length for the values.
    #[error("a {format} row of {n_values} values takes {expected} bytes, but the buffer has {found}")]
    ByteLength {
        /// The format's name.
        format: &'static str,
        /// Number of values in the row.
        n_values: usize,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// An importance matrix does not have one number per value.
    #[error("a row of {n_values} values has {found} numbers of importance")]
    ImportanceLength {
        /// Number of values in the row.
        n_values: usize,
        /// Number of importance values given.
        found: usize,
    },
    /// The name is not an instruction set.
    #[error(
        "unknown instruction set {0:?}; known are scalar, avx2, avxvnni, avx512vnni, neon, dotprod and i8mm"
    )]
    UnknownIsa(String),
    /// The processor lacks the instruction set.
    #[error("this processor has no {0}")]
    UnavailableIsa(&'static str),
}
