//! [`BatchError`]: the reason why a batch may not reach a device.
//!
//! Executors and their callers share it. Invariant: each variant says where in the batch the error is.

use crate::AdapterId;
#[cfg(doc)]
use crate::ForwardBatch;

/// The reason why a [`ForwardBatch`] was refused before anything was computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The batch exceeds a limit of the executor.
    #[error("the batch has {found} {what}, the executor takes at most {maximum}")]
    TooMany {
        /// The limited quantity.
        what: &'static str,
        /// The batch's number.
        found: usize,
        /// The executor's limit.
        maximum: usize,
    },
    /// Two arrays that belong together differ in length.
    #[error("`{what}` has {found} entries, expected {expected}")]
    Length {
        /// The array.
        what: &'static str,
        /// The expected length.
        expected: usize,
        /// Its length.
        found: usize,
    },
    /// An offset array does not increase from zero to the length of the indexed array.
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
    /// A token refers to a logit row that the previous step did not have.
    #[error("token {index} wants sampled row {row}, but the step before had {n_rows} rows")]
    SampledRowOutOfRange {
        /// Index in the batch.
        index: usize,
        /// The referenced row.
        row: u32,
        /// Number of rows of the previous step.
        n_rows: usize,
    },
    /// A token refers to a missing row of inputs, or the executor accepts none.
    #[error("token {index} is input row {row}, but there are {n_rows} rows")]
    InputRow {
        /// Index in the batch.
        index: usize,
        /// The referenced row.
        row: u32,
        /// Number of rows.
        n_rows: usize,
    },
    /// The last position that a token sees is before its own, before that of the preceding token, or beyond
    /// the step.
    #[error("token {token_idx} sees up to a position that its step does not give it")]
    LastSeen {
        /// Index in the batch.
        token_idx: usize,
    },
    /// A token refers to a logit row of the previous step that requested raw logits.
    #[error("token {index} wants sampled row {row}, but the step before sampled no token there")]
    RowNotSampled {
        /// Index in the batch.
        index: usize,
        /// The referenced row.
        row: u32,
    },
    /// A sequence has no token in this step.
    #[error("sequence {seq_idx} of the batch has no token")]
    EmptySequence {
        /// Index in the batch.
        seq_idx: usize,
    },
    /// A sequence of an encoder does not begin at position 0, or requests other rows than its pooled one.
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
        /// Number of positions needed.
        provided: usize,
        /// Number of positions available.
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
    /// A state's slot is outside the pool, is written twice or both written and read, or a snapshot does not
    /// belong to this step.
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
    /// A sequence uses an adapter that is not loaded.
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
