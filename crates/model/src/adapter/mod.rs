//! Adapters: LoRA files in both forms, read into an [`Adapter`](tokenmill_backend::Adapter).
//!
//! Separate from the network, which does not know where an adapter's matrices come from. Invariant: an adapter that was read
//! has finite numbers, a rank of at least 1 in every change, the GGUF names of weights, and the rows of `b` in the order of the
//! base model's.

mod gguf;
mod install;
mod peft;
mod reader;

pub use reader::AdapterReader;

/// More bytes of matrices than this are taken for a mistake.
const MAX_ADAPTER_BYTES: usize = 4 << 30;
