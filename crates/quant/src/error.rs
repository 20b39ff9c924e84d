//! [`QuantError`]: everything that can be wrong with what a caller passes in.

use tokenmill_gguf::TensorType;

/// Why a row was refused. Nothing was computed or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The table has no row for this type: its tensors can be listed, not computed.
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
        /// Values per block.
        block_len: usize,
        /// Values in the row.
        found: usize,
    },
    /// A row is so long that its size in bytes overflows.
    #[error("a row of {found} values is too long for this machine")]
    RowTooLong {
        /// Values in the row.
        found: usize,
    },
    /// A byte buffer is not as long as the values need.
    #[error("a {format} row of {n_values} values takes {expected} bytes, but the buffer has {found}")]
    ByteLength {
        /// The format's name.
        format: &'static str,
        /// Values in the row.
        n_values: usize,
        /// Bytes the row takes.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// An importance matrix does not have a number for each value.
    #[error("a row of {n_values} values has {found} numbers of importance")]
    ImportanceLength {
        /// Values in the row.
        n_values: usize,
        /// Numbers of importance given.
        found: usize,
    },
    /// A name that is no instruction set.
    #[error(
        "unknown instruction set {0:?}; known are scalar, avx2, avxvnni, avx512vnni, neon, dotprod and i8mm"
    )]
    UnknownIsa(String),
    /// An instruction set that this processor lacks.
    #[error("this processor has no {0}")]
    UnavailableIsa(&'static str),
}
