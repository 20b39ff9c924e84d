//! [`HfConfig`]: typed access to a Hugging Face `config.json`.
//!
//! Networks, image encoders and folders read their fields through it. Invariant: no field of a network is named here.

mod quantization;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenmill_gguf::RegularFile;

use crate::LoadError;

pub(crate) use quantization::Fp8Scales;

/// A parsed `config.json`.
#[derive(Clone)]
pub(crate) struct HfConfig {
    path: PathBuf,
    values: Map<String, Value>,
}

/// Returns the path of a key in an object or its nested objects, with dots between the parts.
fn path_in(values: &Map<String, Value>, key: &str, depth: usize) -> Option<String> {
    if values.get(key).is_some_and(|value| !value.is_null()) {
        return Some(key.to_owned());
    }
    if depth == 0 {
        return None;
    }
    let objects = (values.iter()).filter_map(|(name, value)| Some((name, value.as_object()?)));
    let mut of_network = objects.filter(|(name, _)| !name.contains("vision") && !name.contains("audio"));
    of_network.find_map(|(name, object)| Some(format!("{name}.{}", path_in(object, key, depth - 1)?)))
}

/// Returns the JSON with Python's non-JSON numbers, such as `Infinity`, as strings. Null would count as
/// missing.
fn with_quoted_infinities(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let (mut rest, mut is_in_string) = (json, false);
    while let Some(&byte) = rest.first() {
        let names: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
        let found = names
            .into_iter()
            .find(|name| !is_in_string && rest.starts_with(name));
        let n_read = match (found, byte) {
            (Some(name), _) => {
                out.extend([b"\"", name, b"\""].concat());
                rest = &rest[name.len()..];
                continue;
            }
            (None, b'\\') if is_in_string => 2.min(rest.len()),
            (None, b'"') => {
                is_in_string = !is_in_string;
                1
            }
            _ => 1,
        };
        out.extend(&rest[..n_read]);
        rest = &rest[n_read..];
    }
    out
}

/// Largest accepted size in bytes; real files have a few kilobytes.
const MAX_CONFIG_BYTES: usize = 16 << 20;

impl HfConfig {
    /// Reads a `config.json`.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let bytes = RegularFile::read_in_folder(folder.unwrap_or(Path::new(".")), name, MAX_CONFIG_BYTES)
            .map_err(|source| LoadError::Read {
                path: path.to_owned(),
                source,
            })?;
        let mut values: Map<String, Value> = serde_json::from_slice(&with_quoted_infinities(&bytes))
            .map_err(|error| LoadError::BadConfig {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
        // In a model with several networks, use the text network.
        if let Some(Value::Object(text)) = values.remove("text_config") {
            let own = text.into_iter().filter(|(key, _)| key != "architectures");
            values.extend(own);
        }
        Ok(Self {
            path: path.to_owned(),
            values,
        })
    }

    /// Returns the fields, for changes.
    pub(crate) fn values_mut(&mut self) -> &mut Map<String, Value> {
        &mut self.values
    }

    /// Returns the first class of `architectures`.
    pub(crate) fn class(&self) -> Result<&str, LoadError> {
        self.values
            .get("architectures")
            .and_then(|classes| classes.get(0)?.as_str())
            .ok_or_else(|| self.wrong("architectures", "a list of class names"))
    }

    /// Returns the configuration of a module in a folder next to this file; `None` if there is none.
    pub(crate) fn beside(&self, name: &str) -> Result<Option<Self>, LoadError> {
        let path = self.path.with_file_name(name);
        if path.is_file() {
            Self::open(&path).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns an error about this file.
    pub(crate) fn bad(&self, reason: String) -> LoadError {
        LoadError::BadConfig {
            path: self.path.clone(),
            reason,
        }
    }

    /// Returns the error for a value of the wrong kind.
    pub(crate) fn wrong(&self, key: &str, expected: &str) -> LoadError {
        LoadError::BadConfig {
            path: self.path.clone(),
            reason: match self.values.get(key) {
                Some(found) => format!("`{key}` is {found}, expected {expected}"),
                None => format!("`{key}` is missing, expected {expected}"),
            },
        }
    }

    /// Returns a value that is present and not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// Returns the path of a key with a value: at the top, or in an object such as `rope_scaling`. Objects of
    /// encoders do not count.
    pub(crate) fn path_of(&self, key: &str) -> Option<String> {
        /// Rope objects are nested in another object.
        const MAX_DEPTH: usize = 2;
        path_in(&self.values, key, MAX_DEPTH)
    }

    /// Returns whether there is a value, even null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Reads an optional count.
    pub(crate) fn opt_usize(&self, key: &str) -> Result<Option<usize>, LoadError> {
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.get(key)
            .map(|value| number(value).ok_or_else(|| self.wrong(key, "a count")))
            .transpose()
    }

    /// Reads a required count.
    pub(crate) fn count(&self, key: &str) -> Result<usize, LoadError> {
        self.first_usize(&[key])
    }

    /// Reads the count under the first of some keys that exists.
    pub(crate) fn first_usize(&self, keys: &[&str]) -> Result<usize, LoadError> {
        (self.opt_first_usize(keys)?).ok_or_else(|| self.wrong(keys[0], "a count"))
    }

    /// Does the same as [`Self::first_usize`]; `None` if there is none.
    pub(crate) fn opt_first_usize(&self, keys: &[&str]) -> Result<Option<usize>, LoadError> {
        let Some(key) = keys.iter().find(|key| self.get(key).is_some()) else {
            return Ok(None);
        };
        if !self.get(key).is_some_and(Value::is_array) {
            return self.opt_usize(key);
        }
        // Some configurations have a list with a value per layer.
        let counts = self.counts(key)?.unwrap_or_default();
        let is_one = counts.windows(2).all(|pair| pair[0] == pair[1]);
        let first = counts.first().filter(|_| is_one).copied();
        (first.map(Some)).ok_or_else(|| self.wrong(key, "one count for all layers"))
    }

    /// Reads an optional list of counts, such as layer indices.
    pub(crate) fn counts(&self, key: &str) -> Result<Option<Vec<usize>>, LoadError> {
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        self.opt_list(key, "a list of counts", count)
    }

    /// Reads an optional list.
    fn opt_list<T>(
        &self,
        key: &str,
        expected: &str,
        item: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let list = (value.as_array()).and_then(|list| list.iter().map(item).collect());
        list.map(Some).ok_or_else(|| self.wrong(key, expected))
    }

    /// Reads an optional number.
    pub(crate) fn opt_f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.get(key)
            .map(|value| value.as_f64().ok_or_else(|| self.wrong(key, "a number")))
            .transpose()
            .map(|number| number.map(|number| number as f32))
    }

    /// Reads a required number.
    pub(crate) fn f32(&self, key: &str) -> Result<f32, LoadError> {
        self.opt_f32(key)?.ok_or_else(|| self.wrong(key, "a number"))
    }

    /// Reads the number under the first of some keys that exists, if any.
    pub(crate) fn first_f32(&self, keys: &[&str]) -> Result<Option<f32>, LoadError> {
        let key = keys.iter().find(|key| self.get(key).is_some());
        key.map_or(Ok(None), |key| self.opt_f32(key))
    }

    /// Reads an optional list of numbers.
    pub(crate) fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, LoadError> {
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        self.opt_list(key, "a list of numbers", number)
    }

    /// Reads an optional boolean.
    pub(crate) fn opt_bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.get(key)
            .map(|value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false")))
            .transpose()
    }

    /// Reads a boolean that defaults to false.
    pub(crate) fn is(&self, key: &str) -> Result<bool, LoadError> {
        Ok(self.opt_bool(key)?.unwrap_or(false))
    }

    /// Returns the object under a key, or an empty one.
    pub(crate) fn object(&self, key: &str) -> Result<Self, LoadError> {
        Ok(Self {
            path: self.path.clone(),
            values: match self.get(key) {
                Some(Value::Object(values)) => values.clone(),
                Some(_) => return Err(self.wrong(key, "an object")),
                None => Map::new(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_outside_strings_become_strings() {
        let check = |json: &str, expected: &str| {
            assert_eq!(with_quoted_infinities(json.as_bytes()), expected.as_bytes());
        };
        check(
            "[0.0, Infinity, -Infinity, NaN]",
            r#"[0.0, "Infinity", "-Infinity", "NaN"]"#,
        );
        check(
            r#"{"Infinity": "a\"NaN", "b": NaN}"#,
            r#"{"Infinity": "a\"NaN", "b": "NaN"}"#,
        );
        check(r#""\"#, r#""\"#);
    }
}
