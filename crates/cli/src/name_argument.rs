//! [`of_argument`]: reads the name of a model, for `pull` and `rm`.
//!
//! MODEL, in contrast, may also be a path. Invariant: a file on this machine that is not a name gets an error
//! that says so.

use std::path::Path;

use tokenmill::hub::{
    HubError, HubSettings, SourceName,
    ollama::{self, OllamaName},
};

use crate::{failure::Failure, missing_model};

/// Reads an argument that must be a name.
///
/// # Errors
/// Fails if the text is not a name, and suggests the name that may be meant.
pub(crate) fn of_argument(text: &str, settings: &HubSettings) -> Result<SourceName, Failure> {
    let path = Path::new(text);
    if text == "demo" {
        return Err(Failure::usage("`demo` is built in and is never downloaded")
            .hint("`tokenmill run demo TEXT` runs it"));
    }
    let parsed: Result<SourceName, HubError> = text.parse();
    // A folder may be called like an owner and a repository; then the repository is pulled.
    if path.is_file() || parsed.is_err() && path.exists() {
        return Err(Failure::usage(format!(
            "`{text}` is a path on this machine, not the name of a model"
        ))
        .hint(format!("`tokenmill run {text} TEXT` runs it")));
    }
    let error = match parsed {
        Ok(name) => return Ok(name),
        Err(error) => error,
    };
    if path.extension().is_some_and(|extension| extension == "gguf") {
        let failure = Failure::usage(format!("`{text}` is the name of a file, not of a model"));
        return Err(failure.hint(
            "a name is OWNER/REPOSITORY[:TYPE] of the Hub or NAME:TAG of Ollama, as `tokenmill list` shows it",
        ));
    }
    let latest = OllamaName::of_short(&format!("{text}:latest"));
    let is_stored = |name: &OllamaName| matches!(ollama::find_stored(name, settings), Ok(Some(_)));
    match latest {
        Some(name) if is_stored(&name) => {
            Err(Failure::usage(error.to_string()).hint(format!("`{name}` is on this machine")))
        }
        Some(_) => Err(Failure::usage(error.to_string()).hint(missing_model::hint(path))),
        None => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_is_answered_with_the_form_of_names() {
        let settings = HubSettings::with_cache("no-such-folder");
        let line = of_argument("foo.gguf", &settings).expect_err("no name").line();
        assert!(line.contains("a name is OWNER/REPOSITORY[:TYPE]"), "{line}");
    }
}
