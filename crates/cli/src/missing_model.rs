//! What to do where MODEL names nothing: people write what other programs take.
//!
//! Separate from the opening of models because it only looks at the name. Invariant: nothing is opened or fetched here.

use std::path::Path;

/// What may stand for MODEL.
pub(crate) const WHAT_MODEL_IS: &str =
    "MODEL is a .gguf file, a folder with one, a Hugging Face folder, or `demo`";

/// How a model comes to this machine.
pub(crate) const HOW_TO_FETCH: &str = "nothing is downloaded yet: fetch a .gguf file with a browser or `curl -LO` and \
                                       give its path; `demo` is built in";

/// What to do where `path` does not exist.
pub(crate) fn hint(path: &Path) -> String {
    let name = path.to_string_lossy();
    let scheme = name.split_once(':').map(|(scheme, _)| scheme);
    if matches!(scheme, Some("http" | "https" | "hf" | "ollama" | "modelscope")) {
        return format!("this is an address; {HOW_TO_FETCH}");
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_file_name = matches!(extension, Some("gguf" | "safetensors" | "json" | "bin"));
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        _ if is_file_name || name.starts_with('.') => WHAT_MODEL_IS.to_owned(),
        [owner, repository] if !owner.is_empty() && !repository.is_empty() && !Path::new(owner).exists() => {
            format!("this looks like a repository of Hugging Face; {HOW_TO_FETCH}")
        }
        [_] => format!("models have no names of their own here; {HOW_TO_FETCH}"),
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
        check(
            "https://huggingface.co/a/b/resolve/main/c.gguf",
            "this is an address",
        );
        check("hf://a/b", "this is an address");
        check("no-owner/repo-GGUF", "this looks like a repository");
        check("no-owner/repo-GGUF:Q4_K_M", "this looks like a repository");
        check("llama3:8b", "models have no names");
        for path in ["a.gguf", "no/such/a.gguf", "/a/b", "./a", "../a/b", "a/b/c"] {
            check(path, "MODEL is");
        }
    }
}
