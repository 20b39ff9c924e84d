//! The traffic: one model serves many requests at once, each as if it were alone.
//!
//! [`Engine`] is the entry point: tokens go in, and a [`Generation`] comes out. It is a stream of events that
//! can be read blocking or asynchronously, and that cancels its request when dropped. One thread owns the
//! [`Executor`](tokenmill_backend::Executor) and repeats this loop:
//!
//! | statement of the loop | what happens | where |
//! |---|---|---|
//! | queue | commands of the callers are taken in | `mailbox.rs`, `core.rs` |
//! | plan | integers decide who computes which tokens on which KV pages | [`Scheduler`], [`PagePool`] |
//! | batch | the plan becomes a [`ForwardBatch`](tokenmill_backend::ForwardBatch), and runs | `batch_builder.rs` |
//! | masks | workers compute which tokens a constrained sequence may continue with | [`TokenConstraint`], `masks.rs` |
//! | commit | sampled tokens are appended, whole pages enter the prefix cache, events go out | `commit.rs`, `publish.rs` |
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

mod adapter_calls;
mod adapter_changes;
mod adapters;
mod admission;
mod answers;
mod arena;
mod batch_builder;
mod board;
mod calls;
mod cause;
mod channel;
mod commit;
mod constraint;
mod context_shift;
mod core;
mod draft_ahead;
mod draft_ledger;
mod draft_model;
mod draft_plan;
mod draft_room;
mod draft_times;
mod draft_trials;
mod drafting;
mod draining;
mod earlier_answers;
mod engine;
mod error;
mod event;
mod fetching;
mod following;
mod generation;
mod ghosts;
mod group;
mod held_prefix;
mod hidden_states;
mod keeping;
mod lane;
mod lane_mask;
mod look_up;
mod lru;
mod mailbox;
mod manner;
mod mask_times;
mod mask_workers;
mod masked_text;
mod masks;
mod media;
mod memory_command;
mod memory_transfer;
mod model_guess;
mod ngram;
mod outcome;
mod outside;
mod page_events;
#[cfg(test)]
mod page_events_tests;
mod page_store;
mod params;
mod pass_times;
mod plan;
mod pool;
mod prefill_watch;
mod prefilled;
mod prefix;
mod prefix_memory;
mod publish;
mod queue_gauge;
mod revise;
mod scheduler;
mod sequence;
mod sharing;
mod shifting;
mod states;
mod step_times;
mod stopwatch;
mod submission;
mod sync;

#[cfg(test)]
#[path = "../tests/support/draft_worth.rs"]
mod draft_worth;
#[cfg(test)]
#[path = "../tests/support/endless.rs"]
mod endless;
#[cfg(test)]
#[path = "../tests/support/known_pages.rs"]
mod known_pages;
#[cfg(test)]
#[path = "../tests/support/masks_of_later_steps.rs"]
mod masks_of_later_steps;
#[cfg(test)]
#[path = "../tests/support/missed_masks.rs"]
mod missed_masks;
#[cfg(test)]
#[path = "../tests/support/missing_threads.rs"]
mod missing_threads;
#[cfg(test)]
#[path = "../tests/support/prompts_and_streams.rs"]
mod prompts_and_streams;
#[cfg(test)]
#[path = "../tests/support/simulation.rs"]
mod simulation;
#[cfg(test)]
#[path = "../tests/support/two_in_flight.rs"]
mod two_in_flight;
#[cfg(test)]
#[path = "../tests/support/world.rs"]
mod world;

pub use adapters::AdaptersInUse;
pub use arena::SeqId;
pub use board::EngineStats;
pub use calls::Output;
pub use constraint::{ConstraintFailure, ConstraintSource, TokenConstraint};
pub use context_shift::ContextShift;
pub use draft_times::DraftTimes;
pub use drafting::{DraftCounters, MAX_DRAFT, Speculation};
pub use engine::Engine;
pub use error::EngineError;
pub use event::{Event, FinishReason, Finished, Prefill, Rows, Timings, Token, Usage};
pub use generation::{Canceller, EventStream, Generation};
pub use hidden_states::hidden_states_bytes;
pub use mailbox::EngineState;
pub use manner::Manner;
pub use mask_times::MaskTimes;
pub use media::{Media, MediaPlaces, MediaSpan};
pub use outcome::{End, Outcome, RowResult, SeqSummary};
pub use page_events::{PageEvent, PageEvents, PageTier, StoredPage};
pub use page_store::{KeptKind, KeptName, KeptPage, Offer, PageReceiver, PageStore, SharedPageStore};
pub use params::{EngineConfig, ForwardParams, ForwardRows, GenerateParams, MAX_SAMPLES};
pub use plan::{PlannedOutput, PlannedRow, StepPlan};
pub use pool::{PagePool, PoolCounters};
pub use prefilled::Prefilled;
pub use prefix::PageKey;
pub use prefix_memory::{PrefixReader, PrefixWriter};
pub use scheduler::{Scheduler, SchedulerConfig, SchedulerCounters, StepBudget};
pub use sequence::{MissReason, SeqSpec, Work};
pub use step_times::{StepTimes, Throughput};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
