//! The seam between a network and a device: the definition of an inference step, and a device's part in it.
//!
//! A leaf crate: the network above and the devices below both import it, and neither imports the other. It
//! has the [`program`], a network as operations on named values, and three traits:
//!
//! - [`Executor`] is coarse, object-safe and called once per step. It is all that an engine sees of a model and its
//!   device: a [`ForwardBatch`] goes in, ragged, with tokens of any number of sequences, and a [`StepOutput`] comes out.
//! - [`ProgramDevice`](program::ProgramDevice) is a device that runs the programs of one network: also object-safe, and called
//!   once per step.
//! - [`Backend`] is fine, dispatched statically and called once per operation. A [`Bridge`](program::Bridge) makes a device
//!   of it.
//!
//! Types that both sides share are defined here: activation functions, norms, ropes, the KV layout, page
//! copies, sampling parameters. So is the [`Sampler`], because every backend samples some rows on the host.
//!
//! **The key decision:** a [`program`] sees counts only ([`StepShape`]), never a token or a position, so a device can
//! capture a step once and replay it. Values reach a device in [`Backend::begin_step`] alone.
//!
//! ```
//! use tokenmill_backend::{ForwardBatch, Phase, RowOutput, SamplingMode, StepShape, TokenSource};
//!
//! // Two sequences: a prompt of three tokens whose keys and values go to page 4, and one token that continues 16 others,
//! // which are in page 0; its own place is the first of page 7.
//! let mut batch = ForwardBatch::default();
//! batch.push_sequence([5, 6, 7].map(TokenSource::Id), 0, &[4]);
//! batch.want_last(RowOutput::Logits);
//! batch.push_sequence([9].map(TokenSource::Id), 16, &[0, 7]);
//! batch.want_last(RowOutput::Logits);
//!
//! // The shape that selects a program's variant.
//! let shape = StepShape::of(&batch);
//! assert_eq!((shape.n_tokens, shape.n_seqs, shape.n_logits, shape.max_pages), (4, 2, 2, 2));
//! assert_eq!((shape.phase, shape.sampling), (Phase::Mixed, SamplingMode::Raw));
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod adapter_operations;
mod adapter_runs;
mod backend;
mod batch;
mod batch_check;
mod batch_error;
mod batch_part;
mod batch_rows;
mod collective;
mod error;
mod executor;
mod experts;
mod host_step;
mod kv_layout;
mod kv_stores;
mod latent;
mod layer_operations;
mod limits;
mod measure;
mod memory;
mod memory_plan;
mod network_shape;
mod operands;
mod page_group;
mod part;
mod pooling;
pub mod program;
mod recurrence;
mod row_mask;
mod sampler;
mod sampling_order;
mod sampling_params;
mod sequence_memory;
mod split;
mod state_layout;
mod step_shape;
mod step_trace;
mod streams;

pub use adapter::{Adapter, AdapterError, AdapterId, AdapterWeight, FloatMatrix};
pub use adapter_operations::{AdapterMatrices, AdapterOperations, LowRank};
pub use adapter_runs::{AdapterRun, AdapterRuns};
pub use backend::Backend;
pub use batch::{ForwardBatch, PAGE_TOKENS, RowOutput, SampleRow, SeqState, StateSave, TokenSource};
pub use batch_error::BatchError;
pub use collective::{Collective, ColumnGather, GroupError, HostGroup, HostRank};
pub use error::BackendError;
pub use executor::{Executor, PageCopy, RowError, SampledToken, StepError, StepOutput, Ticket, TokenLogprob};
pub use experts::{
    Carried, ExpertGroups, ExpertInput, ExpertOperations, ExpertScore, GroupMeasure, MIN_SCORE_SUM, Routed,
    Router,
};
pub use host_step::{HostStep, PickRow, RowSampler};
pub use kv_layout::{KvLayerShape, KvLayout, KvType, KvTypeError, MAX_ROTATION};
pub use kv_stores::KvStores;
pub use latent::{JoinedRows, LatentOperations};
pub use layer_operations::{LayerOperations, Xielu};
pub use limits::{ExecutorLimits, GroupLimits, WindowGroup};
pub use measure::Measure;
pub use memory::{Allocation, MatrixData, MatrixUsage, Memory};
pub use memory_plan::MemoryPlan;
pub use network_shape::{AttentionShape, ExpertsShape, HeadsShape, KvStoreOfLayer, LayerShape, NetworkShape};
pub use operands::{
    Activation, Attention, Linear, LinearAddNorm, LinearJob, Norm, NormKind, Rope, RopeAxes, RopeStoreKv,
    RopeStyle, RowSet, Temperature,
};
pub use page_group::PageGroup;
pub use part::{NetworkPart, Side};
pub use pooling::Pooling;
pub use program::weigh::Weigh;
pub use recurrence::{
    Columns, DeltaDecays, DeltaNet, DeltaNetRows, KeyHeads, RecurrentOperations, ShortConv, SsmRows, SsmScan,
};
pub use row_mask::{LateMask, RowMask};
pub use sampler::{SampleRequest, Sampler};
pub use sampling_order::{DynamicTemperature, Mirostat, MirostatVersion, SamplerStep, Xtc};
pub use sampling_params::{Dry, SamplingParams, SamplingParamsError};
pub use sequence_memory::{MemoryFormat, MemoryPlace, SequenceMemory};
pub use split::{Recorded, SplitOperations};
pub use state_layout::{StateLayerShape, StateLayout};
pub use step_shape::{Phase, SamplingMode, StepShape};
pub use step_trace::{DeviceTimes, StepTrace};
pub use streams::{MAX_STREAMS, MIN_MEAN_SQUARE, StreamOperations, StreamsShape};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
