//! [`BatchError`]: why a batch may not reach a device.
//!
//! Separate from the checks because executors and callers name it without them. Invariant: each kind says where in the batch it is.

use crate::AdapterId;
#[cfg(doc)]
use crate::ForwardBatch;

/// Why a [`ForwardBatch`] was refused before anything was computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// More of something than the executor was built for.
    #[error("the batch has {found} {what}, the executor takes at most {maximum}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many the batch has.
        found: usize,
        /// How many the executor takes.
        maximum: usize,
    },
    /// Two arrays that belong together differ in length.
    #[error("`{what}` has {found} entries, expected {expected}")]
    Length {
        /// The array.
        what: &'static str,
        /// Its length if it fitted.
        expected: usize,
        /// Its length.
        found: usize,
    },
    /// An offset array does not rise from zero to the length of what it indexes.
    #[error("`{what}` does not rise from 0 to the end of what it divides")]
    Offsets {
        /// The array.
        what: &'static str,
    },
    /// A token id is outside the vocabulary.
    #[error("token {index} has id {id}, but the vocabulary has {n_vocab} tokens")]
    TokenOutOfRange {
        /// Index in the batch.
        index: usize,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A token refers to a logit row that the step before did not have.
    #[error("token {index} wants sampled row {row}, but the step before had {n_rows} rows")]
    SampledRowOutOfRange {
        /// Index in the batch.
        index: usize,
        /// The row it names.
        row: u32,
        /// Rows of the step before.
        n_rows: usize,
    },
    /// A token refers to a row of inputs that the batch does not have, or the executor takes none.
    #[error("token {index} is input row {row}, but there are {n_rows} rows")]
    InputRow {
        /// Index in the batch.
        index: usize,
        /// The row it names.
        row: u32,
        /// Rows there are.
        n_rows: usize,
    },
    /// The last position that a token sees lies before its own, before that of the token ahead of it, or behind the step.
    #[error("token {token_idx} sees up to a position that its step does not give it")]
    LastSeen {
        /// Index in the batch.
        token_idx: usize,
    },
    /// A token refers to a logit row of the step before that asked for raw logits.
    #[error("token {index} wants sampled row {row}, but the step before sampled no token there")]
    RowNotSampled {
        /// Index in the batch.
        index: usize,
        /// The row it names.
        row: u32,
    },
    /// A sequence has no token in this step.
    #[error("sequence {seq_idx} of the batch has no token")]
    EmptySequence {
        /// Index in the batch.
        seq_idx: usize,
    },
    /// A sequence of an encoder does not begin at position 0, or not its pooled row alone is asked for.
    #[error("sequence {seq_idx} of the batch must be whole, with its pooled row and no other")]
    NotWhole {
        /// Index in the batch.
        seq_idx: usize,
    },
    /// A sequence would grow beyond the context length.
    #[error("sequence {seq_idx} needs {provided} positions, the context has {maximum}")]
    ContextExceeded {
        /// Index in the batch.
        seq_idx: usize,
        /// Positions it needs.
        provided: usize,
        /// Positions there are.
        maximum: usize,
    },
    /// A page that the step reads or writes is missing or outside the pool.
    #[error("sequence {seq_idx}: page {page_idx} of its table is {found:?}, which is not in the pool")]
    Page {
        /// Index in the batch.
        seq_idx: usize,
        /// Index in the sequence's page table.
        page_idx: usize,
        /// The entry, if the table reaches that far.
        found: Option<u32>,
    },
    /// A token's position or slot contradicts its sequence's start and page table.
    #[error("token {token_idx} has a position or slot that its sequence does not give it")]
    Placement {
        /// Index in the batch.
        token_idx: usize,
    },
    /// A state's slot is outside the pool, is written twice or both written and read, or a snapshot is not of this step.
    #[error("sequence {seq_idx}: slot {slot} of its state is outside the pool, taken, or not of this step")]
    State {
        /// Index in the batch.
        seq_idx: usize,
        /// The slot.
        slot: u32,
    },
    /// Output rows are not ascending token indices.
    #[error("`{what}` must be ascending indices of tokens")]
    Rows {
        /// The array.
        what: &'static str,
    },
    /// A sequence has an adapter that is not loaded.
    #[error("sequence {seq_idx} of the batch has adapter {adapter}, which is not loaded")]
    UnknownAdapter {
        /// Index in the batch.
        seq_idx: usize,
        /// The adapter.
        adapter: AdapterId,
    },
    /// A sampling record points outside the histories or masks.
    #[error("logit row {row}: its history or mask lies outside the batch")]
    SampleRange {
        /// The logit row.
        row: usize,
    },
}
