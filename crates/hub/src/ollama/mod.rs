//! Models of Ollama's registry: from `NAME:TAG` to a GGUF file on this machine.
//!
//! A second source besides the Hub. Models downloaded by Ollama itself are found in its folder, and pulled
//! ones are stored there too, so that both programs find them.
//!
//! ```no_run
//! use tokenmill_hub::{HubSettings, ollama};
//!
//! let settings = HubSettings::from_variables(|name| std::env::var(name).ok());
//! let name: ollama::OllamaName = "llama3.2:1b".parse()?;
//! let model = match ollama::find_stored(&name, &settings)? {
//!     Some(model) => model,
//!     None => ollama::plan(&name, &settings, &())?.fetch(&settings, &())?,
//! };
//! println!("{}", model.path.display());
//! # Ok::<(), tokenmill_hub::HubError>(())
//! ```
//!
//! A manifest names layers by their SHA-256: the weights, and small ones such as a template. All are
//! downloaded, since Ollama needs them; this program reads only the weights, which contain their own
//! template. Source: <https://github.com/ollama/ollama/blob/main/docs/faq.mdx> for the folder, and the
//! manifests themselves for their format.

mod interrupted;
mod manifest;
mod name;
mod pull;
mod store;

pub use interrupted::remove_interrupted;
pub use name::OllamaName;
pub use pull::{OllamaPlan, plan};
pub use store::{OllamaRemoval, StoredOllamaModel, find_stored, name_of, stored_models};
