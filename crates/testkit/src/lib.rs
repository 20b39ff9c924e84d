//! Code that tests share: a naive reference backend, tiny models made in memory, the conformance suite that
//! every backend must pass, the parity check against reference data, executors of real networks, a
//! deterministic executor for the engine's tests, the random numbers of all tests, the one
//! place that finds reference data, and the count of comparisons with it.
//!
//! For development only; nothing in the product depends on it. The feature `engines` is for crates whose tests run networks: without
//! it neither the backends of the product nor the network for them are compiled. A new backend runs the suite from its own test file:
//!
//! ```
//! use tokenmill_testkit::{NaiveBackend, conformance::{self, Company, Features, Subject}};
//!
//! let subject = Subject {
//!     load: |_n_threads, model, options| Box::new(model.load_on(NaiveBackend::new(), options)),
//!     n_threads: &[1],
//!     features: Features::All,
//!     n_random_networks: 4,
//!     company: Company::Bits,
//!     stores: |_| true,
//! };
//! conformance::only_the_rows_asked_for_come_back(&subject);
//! conformance::a_row_that_is_not_finite_fails_alone(&subject);
//! ```
#![forbid(unsafe_code)]

pub mod adapter_files;
pub mod adapter_parity;
mod cases;
mod clocked_backend;
pub mod comparisons;
pub mod conformance;
#[cfg(feature = "engines")]
pub mod engines;
mod expert_variants;
pub mod fake_executor;
pub mod generate;
mod hidden_reader;
pub mod json_mutation;
mod latent_variants;
mod memory_kinds;
mod naive_backend;
pub mod parity;
mod png;
mod random;
mod reference;
mod rounds;
mod small_disk;
pub mod text_mutation;
mod tiny_model;
mod variants;

pub use cases::{Slice, cases, sizes};
pub use clocked_backend::{Clock, ClockedBackend, ProductTime, SharedClock};
pub use comparisons::{Comparisons, skip, take_report, test_data};
pub use expert_variants::{EXPERT_VARIANTS, tiny_experts};
pub use fake_executor::FakeExecutor;
pub use memory_kinds::MEMORY_KINDS;
pub use naive_backend::{NaiveBackend, NaiveMatrix, RouteLog, erf};
pub use png::{crc32, png_header};
pub use random::Random;
pub use reference::{Facts, FileFacts, Limits, Reference, ReferenceError, Tolerance, end_tokens};
pub use rounds::{Rounds, rounds};
pub use small_disk::SmallDisk;
pub use tiny_model::{TinyModel, tiny_llama};
pub use variants::{VARIANTS, Variant, random_variant};
