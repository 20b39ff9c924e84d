//! Adapters: LoRA files in both forms, read into an [`Adapter`](tokenmill_backend::Adapter).
//!
//! The network does not know where an adapter's matrices come from. Invariant: an adapter that was read has
//! finite numbers, a rank of at least 1 in every change, GGUF names of weights, and the rows of `b` in the
//! order of the base model.

mod gguf;
mod install;
mod peft;
mod reader;

pub use reader::AdapterReader;

/// Largest accepted size of an adapter's matrices, in bytes.
const MAX_ADAPTER_BYTES: usize = 4 << 30;
