//! The network: what a step of inference is, and how it is computed.
//!
//! A [`Model`] is an opened file (GGUF, or a Hugging Face folder); [`Model::load_on`] makes a [`ModelExecutor`] of it. Two
//! seams of `tokenmill-backend` meet here:
//!
//! - [`Executor`](tokenmill_backend::Executor) is coarse, object-safe and called once per step: it is all that an engine sees
//!   of a model and its device. A [`ForwardBatch`](tokenmill_backend::ForwardBatch) goes in, ragged, with tokens of any number
//!   of sequences; a [`StepOutput`](tokenmill_backend::StepOutput) comes out.
//! - [`Backend`](tokenmill_backend::Backend) is fine, dispatched statically and called once per operation: it is all that the
//!   program sees of a device.
//!
//! **The key decision:** a network is a [`Program`](tokenmill_backend::program::Program), operations on named values. It is
//! written from a [`Descriptor`], which an architecture's file makes from metadata; nothing else knows an architecture's
//! name. And it depends on counts only ([`StepShape`](tokenmill_backend::StepShape)), never on a token or a position, so
//! that a device can capture a step once and replay it.
//!
//! Numbers do not depend on company: on the CPU a row has the same bits whatever else is in its step, however its prompt
//! was chunked, on any number of threads; the [`Sampler`](tokenmill_backend::Sampler) draws by (seed, position) alone.
//!
//! ```
//! use tokenmill_gguf::{GgufFile, TensorType};
//! use tokenmill_backend::{Executor, ForwardBatch, RowOutput, StepOutput, TokenSource};
//! use tokenmill_cpu_exec::CpuBackend;
//! use tokenmill_model::{Model, ModelOptions};
//! use tokenmill_quant::CpuFeatures;
//! use tokenmill_testkit::{TinyModel, tiny_llama};
//!
//! // A random two-layer llama in memory; `Model::open` takes a path.
//! let bytes = TinyModel::random(tiny_llama(), TensorType::Q8_0, 1).to_gguf()?;
//! let model = Model::from_gguf(GgufFile::from_bytes(&bytes)?)?;
//! let backend = CpuBackend::new(None, CpuFeatures::detect())?;
//! let mut executor = model.load_on(backend, &ModelOptions::default(), &mut |_| {})?;
//!
//! // Three tokens of one sequence, whose KV lies in page 0; the logits after the last.
//! let mut batch = ForwardBatch::default();
//! batch.push_sequence([5, 6, 7].map(TokenSource::Id), 0, &[0]);
//! batch.want_last(RowOutput::Logits);
//! let ticket = executor.submit(&batch)?;
//! let mut output = StepOutput::default();
//! executor.wait(ticket, &mut output)?;
//! assert_eq!(output.logits.len(), model.descriptor().n_vocab);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod alt_up;
mod arch;
mod control_vector;
mod decision_head;
mod decoder;
mod descriptor;
mod encoded;
mod error;
mod ffn;
mod folder_as_gguf;
mod fp8;
mod gguf_header;
mod hf_config;
mod hf_layout;
mod hf_rope;
mod layer_embeddings;
mod loader;
mod mixers;
mod model;
mod model_executor;
mod network;
mod nextn;
mod nextn_file;
mod nextn_layer;
mod normal;
mod plan;
mod pooler;
mod rope;
mod safetensors_folder;
mod shard;
mod tensor_view;
mod vision;
mod weights;

pub use adapter::AdapterReader;
pub use arch::architectures;
pub use control_vector::ControlVector;
pub use descriptor::{
    AltUpDescriptor, AttentionDescriptor, BesideDescriptor, DecisionDescriptor, DeltaGates,
    DeltaNetDescriptor, DenseDescriptor, Descriptor, EmbeddingNorm, FfnDescriptor, GateUpOrder, HeadLayer,
    HeadPart, Ignorable, KimiDeltaDescriptor, LatentDescriptor, LatentExperts, LayerDescriptor,
    LayerEmbeddingsDescriptor, MixerDescriptor, MoeDescriptor, N_QUESTION_TYPES, NormDescriptor,
    NormPlacement, OutputGate, OutputHead, PooledOutput, PoolingDescriptor, Presence, QkNorm, Residual,
    RouterDescriptor, RowFactors, SharedDescriptor, ShortConvDescriptor, SsmDescriptor, SsmKind,
    TowerDescriptor, XieluNumbers,
};
pub use error::{FieldNotInGguf, LoadError, NotInGguf};
pub use folder_as_gguf::FolderAsGguf;
pub use gguf_header::check_is_model;
pub use loader::LoadProgress;
pub use model::{Model, build};
pub use model_executor::ModelExecutor;
pub use nextn_file::NextnFile;
pub use nextn_layer::Nextn;
pub use plan::{ModelOptions, WindowPages};
pub use rope::{LongRopeFactors, RopeDescriptor, RopeScaling, YarnRounding};
pub use shard::{Rank, Shard};
pub use vision::{
    ImageGrid, ImageSize, MAX_PATCHES, VisionError, VisionFamily, VisionFile, VisionFolder, VisionShape,
    VisionTower,
};
pub use weights::{StoredForm, WeightInfo, WeightSource, WeightTensor};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
