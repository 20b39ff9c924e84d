//! Names in place of a model's path.
//!
//! The load knows only paths. Invariants: an existing file or folder is never taken for a name; a model on
//! this machine is opened without a server.

use std::path::{Path, PathBuf};

use crate::Error;
#[cfg(feature = "hub")]
use crate::machine_memory::machine_bytes;

/// Selects the files that are downloaded together with a model.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "hub"),
    expect(dead_code, reason = "nothing is downloaded in this build")
)]
pub(crate) struct Company {
    /// Its image encoder.
    pub(crate) projector: bool,
    /// Its MTP layers.
    pub(crate) nextn: bool,
}

/// Returns the path of a model, which is downloaded first if `model` is a name and the model is not on this machine. The download is silent;
/// the module `hub` reports progress. The environment variables are those of `huggingface_hub`.
///
/// # Errors
/// [`Error::Hub`]: no such model, or none that fits into the memory; a server that cannot be reached, or may not be asked.
#[cfg(feature = "hub")]
pub(crate) fn path_of(model: &Path, company: Company) -> Result<PathBuf, Error> {
    use tokenmill_hub::{HubSettings, PullWishes, SourceName};

    let Some(name) = SourceName::of_path(model)? else {
        return Ok(model.to_owned());
    };
    let settings = HubSettings::from_variables(|name| std::env::var(name).ok());
    let mut wishes = PullWishes::default();
    wishes.memory_bytes = machine_bytes();
    wishes.with_projector = company.projector;
    wishes.with_nextn = company.nextn;
    match name.find_stored(&wishes, &settings) {
        Ok(Some(found)) => Ok(found.path),
        Err(error) if settings.is_offline => Err(error.into()),
        // Another type may fit.
        Ok(None) | Err(_) => {
            let plan = name.plan(&wishes, &settings, &())?;
            Ok(plan.fetch(&settings, &())?.path)
        }
    }
}

/// Returns `model` if it is a path.
///
/// # Errors
/// [`Error::NeedsHub`] for a name.
#[cfg(not(feature = "hub"))]
pub(crate) fn path_of(model: &Path, _: Company) -> Result<PathBuf, Error> {
    match model.to_str().filter(|text| is_name(text)) {
        Some(name) => Err(Error::NeedsHub {
            name: name.to_owned(),
        }),
        None => Ok(model.to_owned()),
    }
}

/// Says whether a text is `OWNER/REPOSITORY[:TYPE]` or `NAME:TAG`, and not a file or folder. In builds with the feature `hub` the crate
/// `tokenmill_hub` decides.
#[cfg(any(not(feature = "hub"), test))]
fn is_name(text: &str) -> bool {
    let (name, tag) = text.split_once(':').unwrap_or((text, ""));
    let (owner, repository) = name.split_once('/').unwrap_or((name, ""));
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphanumeric())
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let extension = Path::new(text)
        .extension()
        .and_then(|extension| extension.to_str());
    let is_file_name = tag.is_empty() && matches!(extension, Some("gguf" | "safetensors" | "json" | "bin"));
    let has_shape = match (repository, tag) {
        ("", "") => false,
        ("", tag) => is_word(owner) && is_word(tag),
        (repository, "") => is_word(owner) && is_word(repository),
        (repository, tag) => is_word(owner) && is_word(repository) && is_word(tag),
    };
    has_shape && !is_file_name && !Path::new(text).exists() && !Path::new(owner).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_an_owner_or_a_tag_and_no_file() {
        let check = |text: &str, expected: bool| {
            assert_eq!(is_name(text), expected, "{text}");
            #[cfg(feature = "hub")]
            assert_eq!(
                tokenmill_hub::SourceName::of_path(Path::new(text))
                    .unwrap()
                    .is_some(),
                expected,
                "{text}"
            );
        };
        check("ggml-org/gemma-3-1b-it-GGUF", true);
        check("ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", true);
        check("gemma3:1b", true);
        check("demo", false);
        check("model.gguf", false);
        check("models/model.gguf", false);
        check("./models/model", false);
        check("/models/model", false);
        check("a/b/c", false);
        check("src/nothing", false);
    }
}
