//! The seam between a network and a device: what a step of inference is, and what a device must do for it.
//!
//! A leaf: the network above and the devices below both import it, and neither imports the other. Two traits meet here:
//!
//! - [`Executor`] is coarse, object-safe and called once per step. It is all that an engine sees of a model and its
//!   device: a [`ForwardBatch`] goes in, ragged, with tokens of any number of sequences, and a [`StepOutput`] comes out.
//! - [`Backend`] is fine, dispatched statically and called once per operation. It is all that the forward pass sees of a
//!   device.
//!
//! The types that both sides speak of stand here once: activation functions, norms, ropes, the KV layout, page copies,
//! sampling parameters. The [`Sampler`] stands here too, because every backend samples some rows on the host.
//!
//! **The key decision:** the forward pass sees counts only ([`StepShape`]), never a token or a position, so a device can
//! capture a step once and replay it. Values reach a device in [`Backend::begin_step`] alone.
#![forbid(unsafe_code)]

mod backend;
mod batch;
mod executor;
mod host_step;
mod kv_layout;
mod memory;
mod memory_plan;
mod network_shape;
mod operands;
mod pooling;
mod sampler;
mod sampling_params;
mod step_shape;

pub use backend::{Backend, BackendError};
pub use batch::{BatchError, ForwardBatch, PAGE_TOKENS, RowOutput, SampleRow, TokenSource};
pub use executor::{
    Executor, ExecutorLimits, PageCopy, RowError, SampledToken, StepError, StepOutput, Ticket, TokenLogprob,
};
pub use host_step::{HostStep, PickRow};
pub use kv_layout::{KvLayerShape, KvLayout, KvType, KvTypeError};
pub use memory::{Allocation, Measure, Memory};
pub use memory_plan::MemoryPlan;
pub use network_shape::{AttentionShape, LayerShape, NetworkShape};
pub use operands::{
    Activation, Attention, Linear, LinearJob, MatrixData, MatrixUsage, Norm, NormKind, Rope, RopeStoreKv,
    RopeStyle, RowSet,
};
pub use pooling::Pooling;
pub use sampler::{SampleRequest, Sampler};
pub use sampling_params::{Dry, SamplingParams, SamplingParamsError};
pub use step_shape::{Phase, SamplingMode, StepShape};
