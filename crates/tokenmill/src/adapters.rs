//! [`AdapterSource`] and [`LoadedAdapter`]: adapters by name, and the list of a model's adapters.
//!
//! The model's calls are in `model_adapters.rs`. Invariant: a name stands for one adapter at a time.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokenmill_backend::AdapterId;
use tokenmill_model::AdapterReader;

use crate::Error;

/// Adapters that a model may have at a time, where nothing else is said.
pub const DEFAULT_MAX_ADAPTERS: usize = 64;

/// Longest name of an adapter.
const MAX_NAME_BYTES: usize = 200;

/// An adapter to load: `PATH`, `NAME=PATH` or `NAME=PATH:STRENGTH` as a text. Without a name it is called as its file or folder.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSource {
    /// Name in requests.
    pub name: String,
    /// A GGUF file, or a folder as the PEFT library writes it.
    pub path: PathBuf,
    /// Multiplies its changes; 1 takes them as they were trained.
    pub strength: f32,
}

impl AdapterSource {
    /// Returns the size of its weights' file in bytes, about the size of its matrices; 0 if the file is
    /// missing. The later read reports a missing file by name.
    pub(crate) fn file_bytes(&self) -> usize {
        let file = if self.path.is_dir() {
            &self.path.join("adapter_model.safetensors")
        } else {
            &self.path
        };
        fs::metadata(file).map_or(0, |facts| usize::try_from(facts.len()).unwrap_or(usize::MAX))
    }
}

impl FromStr for AdapterSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = (text.split_once('=')).map_or((None, text), |(name, rest)| (Some(name), rest));
        let (path, strength) = match rest.rsplit_once(':') {
            Some((path, number)) => match number.parse::<f32>() {
                Ok(strength) => (path, strength),
                // A colon of the path itself.
                Err(_) => (rest, 1.0),
            },
            None => (rest, 1.0),
        };
        if path.is_empty() {
            return Err("there is no path".to_owned());
        }
        let name = match name {
            Some(name) => name.to_owned(),
            None => name_of(Path::new(path)).ok_or("the path has no name; write NAME=PATH")?,
        };
        if let Some(reason) = fault_of(&name) {
            return Err(format!("the name `{name}` {reason}; write NAME=PATH"));
        }
        if !strength.is_finite() {
            return Err(format!("a scale of {strength} is not a valid scale"));
        }
        Ok(Self {
            name,
            path: path.into(),
            strength,
        })
    }
}

/// Returns the name of an adapter that is given without one: its folder's, or its file's without the extension.
fn name_of(path: &Path) -> Option<String> {
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    name.map(|name| name.to_string_lossy().into_owned())
}

/// Returns the fault of a name, if it has one.
fn fault_of(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > MAX_NAME_BYTES {
        Some("is longer than 200 bytes")
    } else if name.contains(|c: char| c.is_whitespace() || c.is_control() || is_unseen(c) || c == ',') {
        Some("has a space, a comma or a control character")
    } else {
        None
    }
}

/// Says whether a character is invisible but changes how others are shown, which could disguise a name in a list.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// An adapter that requests can name.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedAdapter {
    /// Name in requests.
    pub name: String,
    /// Where it was read from.
    pub path: PathBuf,
    /// Multiplies its changes.
    pub strength: f32,
    /// The largest rank of its changes.
    pub rank: usize,
    /// Bytes of its matrices.
    pub n_bytes: usize,
    /// Its name in the engine.
    pub id: AdapterId,
}

/// The adapters of a model.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// `None` where the model was not loaded here.
    pub(crate) reader: Option<AdapterReader>,
    pub(crate) max_adapters: usize,
    loaded: Mutex<Vec<LoadedAdapter>>,
    /// Held while adapters come or go, so that they do one after the other.
    changing: Mutex<()>,
}

impl Shelf {
    pub(crate) fn new(reader: Option<AdapterReader>, max_adapters: usize) -> Self {
        Self {
            reader,
            max_adapters,
            loaded: Mutex::default(),
            changing: Mutex::default(),
        }
    }

    pub(crate) fn loaded(&self) -> MutexGuard<'_, Vec<LoadedAdapter>> {
        self.loaded
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        // It guards no data.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that there is room for an adapter of this name.
    pub(crate) fn check_place(&self, name: &str) -> Result<(), Error> {
        let loaded = self.loaded();
        let reason = fault_of(name).or_else(|| {
            let is_taken = loaded.iter().any(|adapter| adapter.name == name);
            is_taken.then_some("is that of an adapter that is loaded")
        });
        if let Some(reason) = reason {
            return Err(Error::AdapterName {
                name: name.to_owned(),
                reason,
            });
        }
        if loaded.len() >= self.max_adapters {
            return Err(Error::TooManyAdapters {
                maximum: self.max_adapters,
            });
        }
        Ok(())
    }

    pub(crate) fn find(&self, name: &str) -> Result<LoadedAdapter, Error> {
        let loaded = self.loaded();
        let found = loaded.iter().find(|adapter| adapter.name == name).cloned();
        found.ok_or_else(|| Error::UnknownAdapter {
            name: name.to_owned(),
            available: loaded.iter().map(|adapter| adapter.name.clone()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_name_a_path_and_a_scale() {
        let check = |text: &str, name: &str, path: &str, strength| {
            let expected = AdapterSource {
                name: name.to_owned(),
                path: path.into(),
                strength,
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        };
        check("poet=a/b.gguf", "poet", "a/b.gguf", 1.0);
        check("poet=a/b.gguf:0.5", "poet", "a/b.gguf", 0.5);
        check("poet=C:/b.gguf", "poet", "C:/b.gguf", 1.0);
        check("poet=C:/b=c.gguf:-2", "poet", "C:/b=c.gguf", -2.0);
        check("a/poet.gguf", "poet", "a/poet.gguf", 1.0);
        check("poet.v2.gguf:0.5", "poet.v2", "poet.v2.gguf", 0.5);
        // A folder has no extension.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("poet.v2");
        fs::create_dir(&path).expect("a folder");
        let path = path.to_str().expect("a name");
        check(path, "poet.v2", path, 1.0);
        for (text, part) in [
            ("..", "NAME=PATH"),
            ("a b.gguf", "NAME=PATH"),
            (":2", "no path"),
            ("=b.gguf", "empty"),
            ("a b=c", "space"),
            ("a\u{202e}b=c", "control character"),
            ("a=", "no path"),
            ("a=b:inf", "inf"),
            ("a=b:NaN", "NaN"),
        ] {
            let error = text.parse::<AdapterSource>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
