//! The traffic: one model serves many requests at once, each as if it were alone.
//!
//! [`Engine`] is the entry point: tokens go in, and a [`Generation`] comes out. It is a stream of events that
//! can be read blocking or asynchronously, and that cancels its request when dropped. One thread owns the
//! [`Executor`](tokenmill_backend::Executor) and repeats this loop:
//!
//! | statement of the loop | what happens | where |
//! |---|---|---|
//! | queue | commands of callers are accepted | `queue/`, `engine/core/commands.rs` |
//! | plan | the scheduler decides which sequence computes which tokens on which KV pages | [`Scheduler`] in `plan/`, [`PagePool`] in `pages/` |
//! | batch | the plan becomes a [`ForwardBatch`](tokenmill_backend::ForwardBatch), and runs | `plan/batch.rs` |
//! | masks | workers compute which tokens a constrained sequence may continue with | [`TokenConstraint`], `masks/` |
//! | commit | sampled tokens are appended, whole pages enter the prefix cache, events go out | `plan/scheduler/commit.rs`, `engine/core/publish.rs` |
//!
//! The folders; each uses only those before it: `masks` (which tokens a constraint allows), `pages` (the KV
//! pages and the prefix cache), `draft` (which tokens are likely), `params`, `plan` (the scheduler),
//! `draft_model`, `queue` (commands and events between callers and the engine's thread), `engine`.
//!
//! The key decision is that the scheduler and the page pool are integers only: no tensor, no clock, no
//! thread, no I/O. So every decision can be replayed and a million requests simulated in a minute, and
//! nothing above the executor knows its device. A sequence's output depends only on its own tokens,
//! parameters and seed.
//!
//! ```
//! use tokenmill_backend::Executor;
//! use tokenmill_sched::{Engine, EngineConfig, EngineError, GenerateParams};
//!
//! fn first_words(executor: impl Executor + Send + 'static, prompt: &[u32]) -> Result<Vec<u32>, EngineError> {
//!     let engine = Engine::start(executor, EngineConfig::default());
//!     let params = GenerateParams {
//!         max_tokens: Some(8),
//!         ..GenerateParams::default()
//!     };
//!     Ok(engine.generate(prompt, &params)?.tokens)
//! }
//! ```
#![forbid(unsafe_code)]

mod arena;
mod calls;
mod draft;
mod draft_model;
mod engine;
mod error;
mod masks;
mod media;
mod pages;
mod params;
mod plan;
mod queue;
mod sync;

#[cfg(test)]
#[path = "../tests/library/mod.rs"]
mod library;

pub use arena::SeqId;
pub use calls::Output;
pub use draft::budget::DraftTimes;
pub use draft::drafter::{DraftCounters, MAX_DRAFT, Speculation};
pub use draft_model::hidden_states::hidden_states_bytes;
pub use engine::Engine;
pub use engine::board::EngineStats;
pub use engine::generation::{Canceller, EventStream, Generation};
pub use engine::prefilled::Prefilled;
pub use engine::prefix_transfer::{PrefixReader, PrefixWriter};
pub use engine::step_times::{StepTimes, Throughput};
pub use error::EngineError;
pub use masks::constraint::{ConstraintFailure, ConstraintSource, TokenConstraint};
pub use masks::times::MaskTimes;
pub use media::{Media, MediaPlaces, MediaSpan};
pub use pages::events::{PageEvent, PageEvents, PageTier, StoredPage};
pub use pages::key::PageKey;
pub use pages::pool::{PagePool, PoolCounters};
pub use pages::store::{
    KeptKind, KeptName, KeptPage, Offer, PageSink, PageStore, PrefixPart, SharedPageStore,
};
pub use params::context_shift::ContextShift;
pub use params::sampling_key::SamplingKey;
pub use params::{EngineConfig, ForwardParams, ForwardRows, GenerateParams, MAX_SAMPLES};
pub use plan::outcome::{End, Outcome, RowResult, SeqSummary};
pub use plan::scheduler::adapters::AdaptersInUse;
pub use plan::scheduler::{Scheduler, SchedulerConfig, SchedulerCounters, StepBudget};
pub use plan::sequence::{MissReason, SeqSpec, Work};
pub use plan::step_plan::{PlannedOutput, PlannedRow, StepPlan};
pub use queue::event::{Event, FinishReason, Finished, Prefill, Rows, Timings, Token, Usage};
pub use queue::mailbox::EngineState;

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
