//! Hints for a MODEL whose path does not exist, since people write names in the forms of other programs.
//!
//! Only the name matters. Invariant: nothing is opened or downloaded here.

use std::path::Path;

use tokenmill::hub::ollama::OllamaName;

/// The forms that MODEL may have.
pub(crate) const WHAT_MODEL_IS: &str = "MODEL is a .gguf file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY of the Hub, NAME:TAG of Ollama, or `demo`";

/// How a model comes to this machine.
pub(crate) const HOW_TO_FETCH: &str =
    "`tokenmill pull OWNER/REPOSITORY` downloads from the Hugging Face Hub; `demo` is built in";

/// The hint of a command that takes only files, not names of models.
const ONLY_FILES: &str = "a file is expected here; `tokenmill pull OWNER/REPOSITORY` downloads a model and prints where its file is";

/// Returns the hint for a `path` that does not exist.
pub(crate) fn hint(path: &Path) -> String {
    let name = path.to_string_lossy();
    let scheme = name.split_once(':').map(|(scheme, _)| scheme);
    if scheme == Some("hf") {
        return ONLY_FILES.to_owned();
    }
    if matches!(scheme, Some("http" | "https" | "ollama" | "modelscope")) {
        return format!("this is an address of another host; {HOW_TO_FETCH}");
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_file_name = matches!(extension, Some("gguf" | "safetensors" | "json" | "bin"));
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        _ if is_file_name || name.starts_with('.') => WHAT_MODEL_IS.to_owned(),
        // Commands that take names would have taken it for one.
        [owner, repository] if !owner.is_empty() && !repository.is_empty() => {
            if Path::new(owner).is_dir() {
                format!(
                    "`{owner}` is a folder here, so this is a path; `hf://{name}` means the model of the Hugging Face Hub"
                )
            } else {
                ONLY_FILES.to_owned()
            }
        }
        [_] if OllamaName::of_short(&format!("{name}:latest")).is_some() => format!(
            "a model is named by its owner and its repository, as in `tokenmill pull OWNER/REPOSITORY`, or as `{name}:latest` in Ollama's \
             registry; `demo` is built in"
        ),
        [_] => format!("a model is named by its owner and its repository; {HOW_TO_FETCH}"),
        _ => WHAT_MODEL_IS.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_programs_are_told_from_paths() {
        let check = |name: &str, begin: &str| {
            let hint = hint(Path::new(name));
            assert!(hint.starts_with(begin), "{name}: {hint}");
        };
        check("https://example.org/c.gguf", "this is an address");
        check("src/repo-GGUF", "`src` is a folder here");
        check("no-owner/repo-GGUF", "a file is expected here");
        check("hf://src/repo-GGUF", "a file is expected here");
        check(
            "llama3.2",
            "a model is named by its owner and its repository, as in",
        );
        check("llama 3", "a model is named by its owner");
        for path in ["a.gguf", "no/such/a.gguf", "/a/b", "./a", "../a/b", "a/b/c"] {
            check(path, "MODEL is");
        }
    }
}
