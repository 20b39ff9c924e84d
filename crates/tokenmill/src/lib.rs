//! The front door: open a model, give it text, get text.
//!
//! [`Model::open`] takes a GGUF file, a folder with one, a Hugging Face folder with safetensors, `demo`, a small model
//! inside this crate, or, with the feature `hub`, the name of a model to download. It picks the device (the first GPU that
//! can hold the model, else the CPU) and starts an engine that computes the requests of any number of threads side by side.
//!
//! ```
//! use tokenmill::prelude::*;
//!
//! let model = Model::open("demo")?;
//! let params = TextParams::new().max_tokens(16);
//! let answer = model.complete("Once upon a time", &params)?;
//! println!("{} ({} tokens)", answer.text, answer.usage.completion_tokens);
//!
//! // The same, piece by piece.
//! for piece in model.stream("Once upon a time", &params)? {
//!     print!("{}", piece?.text);
//! }
//!
//! // A question, a message or a conversation goes through the model's chat template.
//! let reply = model.chat("What is 3 + 4?", &params)?;
//! println!("{}", reply.text);
//! # Ok::<(), tokenmill::Error>(())
//! ```
//!
//! # What there is
//!
//! | to do | call | gives |
//! |---|---|---|
//! | continue a text | [`Model::complete`], [`Model::samples`] | [`Answer`] |
//! | continue a text, as it comes | [`Model::stream`] | [`TextStream`], an iterator |
//! | answer a conversation | [`Model::chat`], [`Model::chat_stream`] | the same |
//! | wait without a thread | [`Model::complete_async`], [`Model::chat_async`] | futures of the same, for any runtime |
//! | read as it comes without a thread | [`Model::stream_async`], [`TextStream::into_stream`] | [`stream::PieceStream`] |
//! | offer tools, read calls | [`Conversation::tools`], [`Answer::calls`], [`Conversation::result`] | [`ToolCall`] |
//! | have tools called, all or one | [`Conversation::tool_choice`] | calls whose arguments obey the schemas |
//! | end a model's reasoning in time | [`TextParams::thinking_budget`] | an answer within it |
//! | answer many prompts | [`Model::batch`] | a result for each |
//! | answer in a shape: JSON of a schema, a regular expression, a grammar | [`TextParams::constraint`] | text that has it |
//! | compare texts | [`Model::embed`] | a vector for each |
//! | find the documents that answer a query | [`Model::rerank`] | a score for each |
//! | answer typed questions with probabilities | [`Model::decide`] | a [`decide::Decision`] for each |
//! | keep a conversation and what was computed for it | [`Model::save_session`], [`Model::restore_session`] | a file, a [`sessions::Session`] |
//! | tokens in, tokens out | [`Model::engine`] | [`tokenmill_sched::Engine`] |
//! | choose context, device, threads, KV cache | [`Model::options`] | [`LoadOptions`] |
//! | quantize a folder's weights while they load | [`LoadOptions::quantize`] | a smaller, faster [`Model`] |
//! | measure which weights matter most | [`convert::ImportanceRun`] | an importance matrix |
//! | make a smaller GGUF file | the crate `tokenmill_convert` | a file |
//! | know what to do about an error | [`Error::hint`], [`Error::kind`] | an [`advice::Hint`] |
//! | compute on a backend of your own | [`LoadOptions::load_on`] | a [`Model`] like any other |
//!
//! The [`prelude`] has the types of nearly every program, and the root those of most. The modules have all others, by subject: [`load`],
//! [`gpu`], [`placement`] and [`machine`] for loading; [`sampling`], [`constraint`], [`tools`], [`images`], [`adapters`] and
//! [`speculation`] for requests; [`stream`], [`embeddings`], [`rerank`] and [`decide`] for results; [`text`], [`sessions`] and [`convert`].
//!
//! [`Model::device`] says where the model computes and why a GPU was passed over, [`Model::memory`] what it takes, and
//! [`Answer`] carries usage, timings and the reason of the end. [`TextParams::sampling`] holds the sampler's settings; the
//! default is greedy.
//!
//! # The key decision
//!
//! A [`Model`] is a handle to a running engine, not a buffer that one caller borrows. So it is `Send + Sync`,
//! its clones are cheap, requests from many threads share the same steps, and dropping a stream cancels its
//! request. The output of a request depends on its prompt, its parameters and its seed, never on other
//! requests: to the bit on the CPU, up to ties between almost equal logits on a GPU.
//!
//! # The crates below
//!
//! This crate joins [`tokenmill_model`] (files to networks), [`tokenmill_text`] (text to tokens), [`tokenmill_sched`] (many
//! requests, one engine) and the backends `tokenmill_cpu_exec`, `tokenmill_cuda_exec` and [`tokenmill_placed`], which is made of
//! both, behind the seam
//! [`tokenmill_backend`]. Each is useful alone, and [`load::ModelSource`], [`text::ModelWords`] and [`load::load`] give the parts that the
//! front door is made of. The HTTP server `tokenmill-server` and the program `tokenmill` open and run models through this
//! crate, and name types of those below it.
//!
//! # Features
//!
//! - `cuda` (default): computes on NVIDIA GPUs.
//! - `demo` (default): the model `demo`, 3.8 MB.
//! - `images` (default): reads the images of conversations. Without it a conversation that has one is refused.
//! - `hub`: [`Model::open`] takes names of the Hugging Face Hub and of Ollama's registry, too, and the module `hub` downloads with
//!   progress and limits.
#![forbid(unsafe_code)]

pub mod adapters;
mod address_space;
pub mod advice;
mod all_reduce;
mod answer;
mod asynchronous;
mod atomic_write;
mod batch;
#[cfg(feature = "cuda")]
mod calibration;
mod checksum;
mod compute;
pub mod constraint;
mod conversation;
mod conversion;
pub mod convert;
pub mod decide;
mod decide_error;
mod decision;
mod device;
mod draft;
mod draft_facts;
mod dry_breakers;
pub mod embeddings;
mod error;
mod error_text;
mod facts;
mod fitting;
mod folder_lock;
mod format_text;
mod forward_passes;
pub mod gpu;
mod gpu_steps;
mod group_memory;
mod guesser;
#[cfg(feature = "hub")]
pub mod hub;
pub mod images;
mod importance;
mod json_text;
pub mod load;
mod load_options;
mod load_plan;
mod loaded;
mod low_priority;
pub mod machine;
mod machine_memory;
mod measurements;
mod memory_limit;
mod memory_text;
mod model;
mod model_adapters;
mod model_source;
mod mtp;
mod mtp_choice;
mod mtp_file;
mod named;
mod observers;
mod page_file;
pub mod placement;
mod prefix_folder;
pub mod prelude;
mod proc_field;
mod quantized;
mod quiet_load;
mod reply;
mod reply_reader;
pub mod rerank;
pub mod sampling;
mod session;
mod session_error;
pub mod sessions;
pub mod speculation;
mod split_plan;
pub mod stream;
#[cfg(test)]
mod test_engines;
pub mod text;
mod text_params;
mod text_stream;
mod tool_writing;
pub mod tools;
mod turns;
mod vision;
mod vocabularies;
mod wait;
mod words;

pub use answer::{Answer, ToolCall};
pub use compute::Device;
pub use conversation::{Conversation, Turn};
pub use error::Error;
pub use load_options::{KvCache, LoadOptions};
pub use model::Model;
pub use text_params::TextParams;
pub use text_stream::{Delta, TextStream};
pub use tokenmill_backend::SamplingParams;
pub use tokenmill_sched::{FinishReason, Usage};
pub use tokenmill_text::{calls::ToolChoice, constraint::Constraint, template::ChatMessage as Message};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
