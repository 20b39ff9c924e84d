//! [`HubSettings`]: the Hub's address, the folders of files, and the patience of a download.
//!
//! Programs read them from their environment; this crate reads none. Invariant: names and defaults are those
//! of `huggingface_hub`, so that both find the same cache and the same token.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{HubError, address::without_user};

/// The Hub's address, the folders of files, and the patience of a download.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Address of the Hub or of a mirror, without a trailing slash.
    pub endpoint: String,
    /// The folder of the cache.
    pub cache: PathBuf,
    /// The folder in which Ollama keeps models.
    pub ollama_models: PathBuf,
    /// Address of Ollama's registry or of a mirror, without a trailing slash.
    pub ollama_registry: String,
    /// The access token, for private and restricted repositories.
    pub token: Option<HubToken>,
    /// Whether requests to servers are disabled.
    pub is_offline: bool,
    /// Number of simultaneous connections for a large file.
    pub n_connections: usize,
    /// Bytes of a part: the size of one request, and the most that is downloaded again after an interruption.
    pub part_bytes: u64,
    /// The first pause before a retry; it doubles with each failure.
    pub retry_pause: Duration,
    /// Time without data after which a connection counts as broken.
    pub patience: Duration,
}

/// An access token. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl HubToken {
    /// Wraps a token; `None` for an empty text, and for one that is invalid in a header.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_usable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_usable.then(|| Self(text.to_owned()))
    }

    /// Returns the token.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HubToken(hidden)")
    }
}

impl HubSettings {
    /// Returns the defaults with this cache.
    pub fn with_cache(cache: impl Into<PathBuf>) -> Self {
        let cache = cache.into();
        Self {
            endpoint: "https://huggingface.co".to_owned(),
            ollama_models: cache.join("ollama"),
            ollama_registry: "https://registry.ollama.ai".to_owned(),
            cache,
            token: None,
            is_offline: false,
            n_connections: 8,
            part_bytes: 16 << 20,
            retry_pause: Duration::from_secs(1),
            patience: Duration::from_secs(30),
        }
    }

    /// Reads settings as `huggingface_hub` does: `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH` and `HF_HUB_OFFLINE`; and `OLLAMA_MODELS`, as Ollama reads it, with `OLLAMA_REGISTRY`
    /// for a mirror. `variable` returns the value of an environment variable.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let filled = |name: &str| filled(&variable, name);
        let user_home = user_home(&variable).unwrap_or_else(|| PathBuf::from("."));
        let path = |name: &str| filled(name).map(|value| expand(&value, &user_home));
        let home = path("HF_HOME").unwrap_or_else(|| {
            let caches = folder_of_caches(&variable).unwrap_or_else(|| user_home.join(".cache"));
            caches.join("huggingface")
        });
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .unwrap_or_else(|| home.join("hub"));
        let token = filled("HF_TOKEN")
            .or_else(|| filled("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| fs::read_to_string(path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"))).ok());
        let defaults = Self::with_cache(cache);
        Self {
            endpoint: match filled("HF_ENDPOINT") {
                Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
                None => defaults.endpoint,
            },
            ollama_models: path("OLLAMA_MODELS").unwrap_or_else(|| user_home.join(".ollama").join("models")),
            ollama_registry: match filled("OLLAMA_REGISTRY") {
                Some(registry) => registry.trim_end_matches('/').to_owned(),
                None => defaults.ollama_registry,
            },
            token: token.as_deref().and_then(HubToken::new),
            is_offline: filled("HF_HUB_OFFLINE")
                .or_else(|| filled("TRANSFORMERS_OFFLINE"))
                .is_some_and(|value| is_true(&value)),
            ..defaults
        }
    }

    /// Returns the endpoint without user and password, for display.
    pub fn shown_endpoint(&self) -> String {
        without_user(&self.endpoint)
    }

    /// Checks the endpoint.
    ///
    /// # Errors
    /// [`HubError::BadEndpoint`].
    pub fn check(&self) -> Result<(), HubError> {
        let is_address = ["http://", "https://"].iter().any(|scheme| {
            let rest = self.endpoint.strip_prefix(scheme).unwrap_or_default();
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            // These characters suggest a password that cut its address short.
            !host.is_empty() && !path.contains('@') && !rest.contains(['?', '#'])
        });
        if is_address {
            return Ok(());
        }
        Err(HubError::BadEndpoint {
            endpoint: self.shown_endpoint(),
        })
    }
}

/// Returns the user's cache folder: `XDG_CACHE_HOME`, or `.cache` in the home folder; `None` if the
/// environment names neither. `variable` returns the value of an environment variable. As in
/// `huggingface_hub`, `~` means the home folder, and a relative path is used as it is.
pub fn folder_of_caches(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let home = user_home(&variable);
    match filled(&variable, "XDG_CACHE_HOME") {
        Some(named) => Some(expand(&named, home.as_deref().unwrap_or(Path::new(".")))),
        None => Some(home?.join(".cache")),
    }
}

/// Returns the user's home folder.
fn user_home(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let home = filled(&variable, "HOME").or_else(|| filled(&variable, "USERPROFILE"));
    home.map(PathBuf::from)
}

/// Returns the value of a variable that is set and not empty.
fn filled(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).filter(|value| !value.is_empty())
}

/// Returns whether `huggingface_hub` takes a value for true.
fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

/// Replaces `~` with the user's home folder.
fn expand(value: &str, user_home: &Path) -> PathBuf {
    match value.strip_prefix('~') {
        Some("") => user_home.to_owned(),
        Some(rest) if rest.starts_with('/') => user_home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> HubSettings {
        HubSettings::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_cache_is_that_of_huggingface_hub() {
        let check = |variables: &[(&str, &str)], expected: &str| {
            assert_eq!(of(variables).cache, Path::new(expected), "{variables:?}");
        };
        check(&[("HOME", "/u")], "/u/.cache/huggingface/hub");
        check(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/c")], "/c/huggingface/hub");
        check(&[("HOME", "/u"), ("HF_HOME", "~/hf")], "/u/hf/hub");
        check(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/x")], "/x");
        check(&[("HOME", "/u"), ("HF_HOME", "")], "/u/.cache/huggingface/hub");
    }

    #[test]
    fn caches_lie_where_the_environment_says() {
        let check = |variables: &[(&str, &str)], expected: Option<&str>| {
            let found = folder_of_caches(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            });
            assert_eq!(found.as_deref(), expected.map(Path::new), "{variables:?}");
        };
        check(&[], None);
        check(&[("HOME", ""), ("USERPROFILE", "/p")], Some("/p/.cache"));
        check(&[("HOME", "/u"), ("XDG_CACHE_HOME", "")], Some("/u/.cache"));
        check(&[("HOME", "/u"), ("XDG_CACHE_HOME", "~/c")], Some("/u/c"));
        check(&[("XDG_CACHE_HOME", "/c")], Some("/c"));
    }

    #[test]
    fn a_token_is_read_and_never_shown() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("token"), "hf_file\r\n").unwrap();
        let home = home.path().to_str().unwrap();
        let from_file = of(&[("HF_HOME", home)]);
        assert_eq!(from_file.token.as_ref().map(HubToken::text), Some("hf_file"));
        assert!(!format!("{from_file:?}").contains("hf_file"));
        let both = of(&[("HF_HOME", home), ("HF_TOKEN", " hf_env ")]);
        assert_eq!(both.token.as_ref().map(HubToken::text), Some("hf_env"));
        assert_eq!(HubToken::new("a\nb"), None);
    }

    #[test]
    fn an_endpoint_is_an_address_without_a_slash() {
        let settings = of(&[("HF_ENDPOINT", "http://127.0.0.1:1/"), ("HF_HUB_OFFLINE", "yes")]);
        assert_eq!(settings.endpoint, "http://127.0.0.1:1");
        assert!(settings.is_offline && settings.check().is_ok());
        assert!(of(&[("HF_ENDPOINT", "huggingface.co")]).check().is_err());
        for endpoint in [
            "http://u:secret@h",
            "http://u:sec/ret@h",
            "http://u:sec?ret@h",
            "u:secret@h",
            "http:///x",
        ] {
            let settings = of(&[("HF_ENDPOINT", endpoint)]);
            assert_eq!(
                settings.check().is_ok(),
                endpoint == "http://u:secret@h",
                "{endpoint}"
            );
            assert!(!settings.shown_endpoint().contains("ret"), "{endpoint}");
        }
        assert!(!of(&[("HF_HUB_OFFLINE", "0")]).is_offline);
    }
}
