//! [`OllamaName`]: the syntax of a model's name in Ollama's registry.

use std::{fmt, str::FromStr};

use crate::{HubError, ModelName};

/// A model of Ollama's registry: `NAME[:TAG]`, preceded by `NAMESPACE/` unless it is one of Ollama's own.
///
/// `ollama:`, `ollama.com/` and addresses of its pages are also accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OllamaName {
    /// The name as a repository, with the tag as the requested type.
    repository: ModelName,
    tag: String,
}

/// Prefixes of a name, the longer ones first.
const PREFIXES: [&str; 8] = [
    "https://ollama.com/library/",
    "https://ollama.com/",
    "ollama.com/library/",
    "ollama.com/",
    "registry.ollama.ai/library/",
    "registry.ollama.ai/",
    "ollama://",
    "ollama:",
];
/// The namespace of Ollama's own models, which names omit.
const LIBRARY: &str = "library";
const LATEST: &str = "latest";
const MAX_TAG_BYTES: usize = 80;

impl OllamaName {
    /// Returns whether a text is explicitly a model of Ollama's registry.
    pub fn is_marked(text: &str) -> bool {
        PREFIXES.iter().any(|prefix| text.starts_with(prefix))
    }

    /// Parses `NAME:TAG`, as Ollama's users write it; `None` for anything ambiguous. A name of one letter
    /// would be a drive on Windows.
    pub fn of_short(text: &str) -> Option<Self> {
        let (name, tag) = text.split_once(':')?;
        let is_file = [".gguf", ".safetensors", ".json"]
            .iter()
            .any(|end| tag.ends_with(end));
        (name.len() > 1 && !name.contains(['/', '\\']) && !is_file).then(|| text.parse().ok())?
    }

    /// Returns the short name: without the tag `latest`, and without the prefix that distinguishes it from
    /// names of the Hub.
    pub fn short(&self) -> String {
        let tag = match self.tag.as_str() {
            LATEST => String::new(),
            tag => format!(":{tag}"),
        };
        let name = self.repository.short_name();
        match self.repository.owner() {
            LIBRARY => format!("{name}{tag}"),
            namespace => format!("{namespace}/{name}{tag}"),
        }
    }

    /// Returns the namespace and the name, as used in addresses and paths.
    pub(super) fn repository(&self) -> &ModelName {
        &self.repository
    }

    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    /// Returns the name of a manifest in a store.
    pub(super) fn of_parts(namespace: &str, name: &str, tag: &str) -> Option<Self> {
        format!("{namespace}/{name}:{tag}").parse().ok()
    }
}

impl fmt::Display for OllamaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.repository.owner() != LIBRARY {
            // Without the prefix it would be a repository of the Hub.
            write!(f, "ollama:{}/", self.repository.owner())?;
        }
        write!(f, "{}:{}", self.repository.short_name(), self.tag)
    }
}

impl FromStr for OllamaName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let bad = |reason| HubError::BadName {
            name: text.to_owned(),
            reason,
        };
        let prefix = PREFIXES.iter().find(|prefix| text.starts_with(**prefix));
        let name = text.strip_prefix(*prefix.unwrap_or(&"")).unwrap_or(text);
        let (name, tag) = name.split_once(':').unwrap_or((name, LATEST));
        let (namespace, name) = name.split_once('/').unwrap_or((LIBRARY, name));
        let is_tag = |tag: &str| {
            (1..=MAX_TAG_BYTES).contains(&tag.len())
                && tag
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                && !tag.starts_with(['-', '.'])
        };
        if !is_tag(tag) {
            return Err(bad(
                "a tag follows the colon, of letters, digits, `-`, `_` and `.`",
            ));
        }
        if name.contains(['/', '@']) {
            return Err(bad("a model of Ollama is written [NAMESPACE/]NAME[:TAG]"));
        }
        let repository = format!("{namespace}/{name}")
            .parse()
            .map_err(|_| bad("a namespace and a name have letters, digits, `-`, `_` and `.`"))?;
        Ok(Self {
            repository,
            tag: tag.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_namespace_and_a_tag_where_they_are_given() {
        let check = |text: &str, repository: &str, tag: &str, shown: &str, short: &str| {
            let name: OllamaName = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                (name.repository().repository().as_str(), name.tag()),
                (repository, tag),
                "{text}"
            );
            assert_eq!(name.to_string(), shown);
            assert_eq!(shown.parse::<OllamaName>().unwrap(), name);
            assert_eq!(name.short(), short);
        };
        check(
            "llama3.2:1b",
            "library/llama3.2",
            "1b",
            "llama3.2:1b",
            "llama3.2:1b",
        );
        check(
            "ollama:llama3.2",
            "library/llama3.2",
            "latest",
            "llama3.2:latest",
            "llama3.2",
        );
        check(
            "https://ollama.com/library/qwen3:0.6b-q4_K_M",
            "library/qwen3",
            "0.6b-q4_K_M",
            "qwen3:0.6b-q4_K_M",
            "qwen3:0.6b-q4_K_M",
        );
        check(
            "ollama.com/someone/model",
            "someone/model",
            "latest",
            "ollama:someone/model:latest",
            "someone/model",
        );
    }

    #[test]
    fn what_could_be_something_else_is_no_short_name() {
        for text in [
            "llama3.2",
            "C:x",
            "a/b:Q4_K_M",
            "x:y.gguf",
            "x:",
            ":x",
            "a:b:c",
            "a:..",
            "\\a:b",
            "a b:c",
        ] {
            assert_eq!(OllamaName::of_short(text), None, "{text}");
        }
        assert!(OllamaName::of_short("qwen3:0.6b").is_some());
        for text in [
            "ollama:../x",
            "ollama:a/b/c",
            "ollama:",
            "ollama:a:../b",
            "ollama:a@b",
        ] {
            assert!(text.parse::<OllamaName>().is_err(), "{text}");
        }
    }
}
