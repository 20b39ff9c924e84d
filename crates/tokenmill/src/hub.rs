//! Models by name, from the Hugging Face Hub: what [`tokenmill_hub`] has.
//!
//! Separate from the opening of models, which asks no server: a pull gives a path, and [`Model::open`](crate::Model::open) takes it.
//!
//! ```no_run
//! use tokenmill::{
//!     Model,
//!     hub::{HubSettings, ModelName, PullWishes, pull},
//! };
//!
//! let settings = HubSettings::from_variables(|name| std::env::var(name).ok());
//! let name: ModelName = "ggml-org/gemma-3-1b-it-GGUF".parse()?;
//! let pulled = pull(&name, &PullWishes::default(), &settings, &())?;
//! let model = Model::open(pulled.path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use tokenmill_hub::*;
