//! [`ModelName`]: the syntax of a model's name on the Hub.
//!
//! Only the text matters, no server and no disk. Invariant: every part of a name is valid in an address and
//! in a path; no part is empty, and none leads out of a folder.

use std::{fmt, str::FromStr};

use crate::HubError;

/// A model of the Hub: `OWNER/REPOSITORY`, with optional `@REVISION` and `:TYPE`.
///
/// `hf://`, `hf.co/` and addresses of the Hub's pages are also accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelName {
    owner: String,
    repository: String,
    revision: Option<String>,
    wanted: Option<String>,
}

/// Maximum length of a part of a name, in bytes.
const MAX_PART_BYTES: usize = 96;
/// Prefixes that a name of the Hub may have.
const PREFIXES: [&str; 8] = [
    "https://huggingface.co/",
    "http://huggingface.co/",
    "https://hf.co/",
    "http://hf.co/",
    "huggingface.co/",
    "hf.co/",
    "hf://",
    "hf:",
];

impl ModelName {
    /// Returns whether a text is explicitly a model of the Hub, not a file.
    pub fn is_marked(text: &str) -> bool {
        PREFIXES.iter().any(|prefix| text.starts_with(prefix))
    }

    /// Returns `OWNER/REPOSITORY`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.repository)
    }

    /// Returns only the owner.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the repository without its owner.
    pub(crate) fn short_name(&self) -> &str {
        &self.repository
    }

    /// Returns the given revision: a branch, a tag or a commit.
    pub fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    /// Returns the given type or file.
    pub fn wanted(&self) -> Option<&str> {
        self.wanted.as_deref()
    }

    /// Returns the folder of its repository in a cache.
    pub(crate) fn folder_name(&self) -> String {
        format!("models--{}--{}", self.owner, self.repository)
    }

    /// Returns the repository of a folder in a cache.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        let (owner, repository) = folder.strip_prefix("models--")?.split_once("--")?;
        format!("{owner}/{repository}").parse().ok()
    }

    /// Returns the same repository with another type or file.
    #[must_use]
    pub fn with_wanted(&self, wanted: &str) -> Self {
        Self {
            wanted: Some(wanted.to_owned()),
            ..self.clone()
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repository)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(wanted) = &self.wanted {
            write!(f, ":{wanted}")?;
        }
        Ok(())
    }
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        parse(text).map_err(|reason| HubError::BadName {
            name: text.to_owned(),
            reason,
        })
    }
}

fn parse(text: &str) -> Result<ModelName, &'static str> {
    const FORM: &str = "it is written OWNER/REPOSITORY[@REVISION][:TYPE]";
    let prefix = PREFIXES.iter().find(|prefix| text.starts_with(**prefix));
    let name = text
        .strip_prefix(*prefix.unwrap_or(&""))
        .expect("it was just found");
    let (name, page) = match name.match_indices('/').nth(1) {
        // Only addresses continue after the repository; elsewhere the slash belongs to a revision or a file.
        Some((at, _)) if !name[..at].contains(['@', ':']) => (&name[..at], Some(&name[at + 1..])),
        _ => (name, None),
    };
    let (name, wanted) = match name.split_once(':') {
        Some((name, wanted)) => (name, Some(wanted)),
        None => (name, None),
    };
    let (name, revision) = match name.split_once('@') {
        Some((name, revision)) => (name, Some(revision)),
        None => (name, None),
    };
    let (owner, repository) = name.split_once('/').ok_or(FORM)?;
    let (revision, wanted) = match page.map(|page| page.trim_end_matches('/')) {
        None | Some("") => (revision, wanted),
        Some(page) if prefix.is_some() && revision.is_none() && wanted.is_none() => of_page(page)?,
        Some(_) => return Err(FORM),
    };
    if !is_part(owner) || !is_part(repository) {
        return Err("an owner and a repository have letters, digits, `-`, `_` and `.`");
    }
    if wanted.is_some_and(|wanted| wanted.contains('@')) {
        return Err("the revision comes before the type: OWNER/REPOSITORY@REVISION:TYPE");
    }
    if !revision.is_none_or(is_revision) {
        return Err("a revision is a branch, a tag or a commit");
    }
    if !wanted.is_none_or(is_relative_path) {
        return Err("a type such as Q4_K_M or a file of the repository follows the colon");
    }
    Ok(ModelName {
        owner: owner.to_owned(),
        repository: repository.to_owned(),
        revision: revision.map(str::to_owned),
        wanted: wanted.map(str::to_owned),
    })
}

/// Returns the revision and the file named in the rest of a page's address.
fn of_page(page: &str) -> Result<(Option<&str>, Option<&str>), &'static str> {
    // The part after a question mark selects how the page is shown.
    let page = page.split(['?', '#']).next().unwrap_or_default();
    let (kind, rest) = page.split_once('/').unwrap_or((page, ""));
    let (revision, file) = rest.split_once('/').unwrap_or((rest, ""));
    match (kind, revision, file) {
        ("tree", revision, "") if !revision.is_empty() => Ok((Some(revision), None)),
        ("blob" | "resolve", revision, file) if !revision.is_empty() && !file.is_empty() => {
            Ok((Some(revision), Some(file)))
        }
        _ => Err("this is not the page of a model, of a revision or of a file"),
    }
}

/// Returns whether a text can be an owner or a repository.
fn is_part(text: &str) -> bool {
    let is_edge = |c: char| c == '-' || c == '.';
    !text.is_empty()
        && text.len() <= MAX_PART_BYTES
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !text.starts_with(is_edge)
        && !text.ends_with(is_edge)
        && !text.contains("--")
        && !text.contains("..")
}

fn is_revision(text: &str) -> bool {
    is_relative_path(text) && !text.contains([' ', '~', '^', '?', '*', '['])
}

/// Returns whether a character changes the direction of text, which could disguise a name.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether a text is a path that stays below the folder it is joined to, on every system.
pub(crate) fn is_relative_path(text: &str) -> bool {
    const MAX_PATH_BYTES: usize = 512;
    text.len() <= MAX_PATH_BYTES
        && !text.contains(['\\', ':'])
        && !text.chars().any(|c| c.is_control() || turns_text(c))
        && text
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, repository: &str, revision: Option<&str>, wanted: Option<&str>) {
        let name: ModelName = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            (name.repository().as_str(), name.revision(), name.wanted()),
            (repository, revision, wanted),
            "{text}"
        );
    }

    #[test]
    fn names_have_a_revision_and_a_type_where_they_are_given() {
        check("a/b", "a/b", None, None);
        check("a/b:Q4_K_M", "a/b", None, Some("Q4_K_M"));
        check("a/b@main", "a/b", Some("main"), None);
        check("a/b@refs/pr/3:Q8_0", "a/b", Some("refs/pr/3"), Some("Q8_0"));
        check(
            "a/b:sub/m-00001-of-00002.gguf",
            "a/b",
            None,
            Some("sub/m-00001-of-00002.gguf"),
        );
        check("hf://a/b:Q8_0", "a/b", None, Some("Q8_0"));
        check("hf:a/b", "a/b", None, None);
        check("hf.co/a/b:Q8_0", "a/b", None, Some("Q8_0"));
    }

    #[test]
    fn addresses_of_pages_are_names() {
        check("https://huggingface.co/a/b", "a/b", None, None);
        check("https://huggingface.co/a/b/", "a/b", None, None);
        check("https://huggingface.co/a/b/tree/v1", "a/b", Some("v1"), None);
        check(
            "https://huggingface.co/a/b/blob/main/x/m.gguf?download=true",
            "a/b",
            Some("main"),
            Some("x/m.gguf"),
        );
    }

    #[test]
    fn what_could_leave_a_folder_is_no_name() {
        for text in [
            "a",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a/b@",
            "a/b:",
            "a/b@../x",
            "a/b:../x",
            "a/b@x:Q4:1",
            "a/b:Q4@x",
            "a--x/b",
            "a b/c",
            "a/b:/etc/passwd",
            "a/b:..\\x",
            "https://huggingface.co/a/b/discussions",
            "https://huggingface.co/",
            "a/b@a b",
            "é/b",
        ] {
            assert!(text.parse::<ModelName>().is_err(), "{text}");
        }
    }

    #[test]
    fn folders_of_a_cache_name_repositories() {
        let name: ModelName = "Qwen/Qwen3-0.6B-GGUF".parse().unwrap();
        assert_eq!(name.folder_name(), "models--Qwen--Qwen3-0.6B-GGUF");
        assert_eq!(ModelName::of_folder("models--Qwen--Qwen3-0.6B-GGUF"), Some(name));
        assert_eq!(ModelName::of_folder("datasets--a--b"), None);
    }
}
