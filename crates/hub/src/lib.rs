//! Models by name: from `OWNER/REPOSITORY[:TYPE]` to files on this machine.
//!
//! [`pull()`] asks the Hugging Face Hub for the contents of a repository, picks a file that fits into the
//! memory, downloads it over several connections and puts it into the cache of `huggingface_hub`.
//! [`find_stored`] finds a stored model without asking a server. [`stored_models`] lists the stored models,
//! [`DiskUse`] reports their disk space, [`Removal`] removes them, and [`remove_interrupted`] removes the
//! remains of interrupted downloads. [`SourceName`] is a name of the Hub or of Ollama's registry, and
//! distinguishes names from paths.
//!
//! ```no_run
//! use tokenmill_hub::{HubSettings, ModelName, PullWishes, pull};
//!
//! let settings = HubSettings::from_variables(|name| std::env::var(name).ok());
//! let name: ModelName = "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M".parse()?;
//! let model = pull(&name, &PullWishes::default(), &settings, &())?;
//! println!("{}", model.path.display());
//! # Ok::<(), tokenmill_hub::HubError>(())
//! ```
//!
//! # The key decision
//!
//! A snapshot's links are created only when all files of a request are complete and verified. So a program
//! that reads the cache never finds a partial file or one with a wrong hash. Received bytes stay in files
//! with the suffix `.tokenmill.incomplete`, from which the next pull continues.
//!
//! # What is trusted
//!
//! Nothing from a server. Paths, hashes and sizes are checked before they name files; the token is sent to
//! the endpoint and to no other host; bodies have limits, retries have bounds and reads have timeouts.
#![forbid(unsafe_code)]

mod address;
mod api;
mod blob;
mod cache;
mod choice;
mod digest;
mod error;
mod http;
mod incomplete;
mod interrupted;
mod lists;
mod model_name;
mod model_type;
mod observer;
pub mod ollama;
mod on_disk;
mod pull;
mod replace;
mod retry;
mod settings;
mod source;
mod stored;
mod stored_projector;

pub use choice::Variant;
pub use error::HubError;
pub use interrupted::remove_interrupted;
pub use model_name::ModelName;
pub use model_type::{is_model_file_name, variants_of_file};
pub use observer::{PullEvent, PullObserver};
pub use on_disk::{DiskUse, InterruptedPull};
pub use pull::{PullPlan, PullWishes, PulledModel, SAFETENSORS, find_stored, plan, pull};
pub use settings::{HubSettings, HubToken, folder_of_caches};
pub use source::{SourceName, SourcePlan, SourceRemoval};
pub use stored::{Removal, StoredModel, stored_models};
pub use stored_projector::{StoredProjector, stored_projector};

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
