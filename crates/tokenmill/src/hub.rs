//! Models by name, from the Hugging Face Hub: the items of [`tokenmill_hub`].
//!
//! [`Model::open`](crate::Model::open) takes names itself. A program that shows the progress of a download, asks before it, or limits it
//! pulls first and opens the resulting path.
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
