//! [`ModelsFile`]: a TOML file that lists models and the options of each.
//!
//! Invariant: a key is obeyed or refused by name; no file is opened here but this one.

use std::{ffi::OsString, fmt::Display};

use tokenmill_server::KeepAlive;
use toml::{Table, Value};

use super::model_flags::{Setting, is_setting, setting_names};
use crate::numbers::ByteSize;

/// Longest file.
pub(super) const MAX_BYTES: u64 = 1 << 20;

/// Keys of a model that are not options of the command line.
const OWN_KEYS: [&str; 5] = ["model", "alias", "pin", "embedding", "idle-unload"];

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct ModelsFile {
    /// The models in their order.
    pub(super) models: Vec<FileModel>,
    /// The memory budget of all models together.
    pub(super) memory_budget: Option<ByteSize>,
    /// How long each stays loaded without requests.
    pub(super) idle_unload: Option<KeepAlive>,
}

/// A model of a file.
#[derive(Debug)]
pub(super) struct FileModel {
    /// The name of the model in requests.
    pub(super) name: String,
    /// The value of MODEL, as on the command line.
    pub(super) model: String,
    /// Other names.
    pub(super) alias: Vec<String>,
    /// Whether it is loaded at the start and stays.
    pub(super) is_pinned: bool,
    /// Whether it answers requests for embeddings that name no model.
    pub(super) is_embedding: bool,
    /// How long it stays loaded without requests, where that is its own.
    pub(super) idle_unload: Option<KeepAlive>,
    /// Options, those for all models first.
    pub(super) settings: Vec<Setting>,
}

impl ModelsFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Returns the error in one line that names the table and the key.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let table: Table = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error
                .span()
                .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let message = error.message().lines().next().unwrap_or_default().to_owned();
            line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
        })?;
        let mut file = Self::default();
        let mut defaults = Vec::new();
        let mut models = None;
        for (key, value) in table {
            match key.replace('_', "-").as_str() {
                "memory-budget" => file.memory_budget = Some(parsed("memory-budget", &value)?),
                "idle-unload" => file.idle_unload = Some(parsed("idle-unload", &value)?),
                "defaults" => {
                    for (key, value) in table_of("[defaults]", value)? {
                        defaults.push(setting("[defaults]", &key, &value, &[])?);
                    }
                }
                "models" => models = Some(table_of("[models]", value)?),
                _ => {
                    let known = ["models", "defaults", "memory-budget", "idle-unload"];
                    return Err(format!(
                        "unknown key `{key}`; known keys are {}",
                        known.join(", ")
                    ));
                }
            }
        }
        for (name, value) in models.unwrap_or_default() {
            file.models.push(FileModel::read(name, value, &defaults)?);
        }
        if file.models.is_empty() {
            return Err("it lists no model; each model is a table `[models.NAME]`".to_owned());
        }
        Ok(file)
    }
}

impl FileModel {
    fn read(name: String, value: Value, defaults: &[Setting]) -> Result<Self, String> {
        let place = format!("[models.{name}]");
        if name.is_empty() {
            return Err(format!("{place}: a model needs a name"));
        }
        let mut model = None;
        let mut read = Self {
            model: String::new(),
            name,
            alias: Vec::new(),
            is_pinned: false,
            is_embedding: false,
            idle_unload: None,
            settings: defaults.to_vec(),
        };
        for (key, value) in table_of(&place, value)? {
            let within = |error: String| format!("{place}: {error}");
            match key.replace('_', "-").as_str() {
                "model" => model = Some(text_of("model", &value).map_err(within)?),
                "alias" => read.alias = texts_of("alias", &value).map_err(within)?,
                "pin" => read.is_pinned = switch_of("pin", &value).map_err(within)?,
                "embedding" => read.is_embedding = switch_of("embedding", &value).map_err(within)?,
                "idle-unload" => read.idle_unload = Some(parsed("idle-unload", &value).map_err(within)?),
                _ => read.settings.push(setting(&place, &key, &value, &OWN_KEYS)?),
            }
        }
        read.model =
            model.ok_or_else(|| format!("{place}: `model` is missing: a file, a folder or a name"))?;
        Ok(read)
    }
}

fn table_of(place: &str, value: Value) -> Result<Table, String> {
    match value {
        Value::Table(table) => Ok(table),
        _ => Err(format!("{place} is not a table")),
    }
}

fn text_of(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(text.clone()),
        _ => Err(format!("`{key}` is a text")),
    }
}

fn texts_of(key: &str, value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(items) => items.iter().map(|item| text_of(key, item)).collect(),
        text => Ok(vec![text_of(key, text)?]),
    }
}

fn switch_of(key: &str, value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| format!("`{key}` is either true or false"))
}

/// A number or a text that is read as on the command line.
fn parsed<T: std::str::FromStr<Err: Display>>(key: &str, value: &Value) -> Result<T, String> {
    let text = scalar(value).ok_or_else(|| format!("`{key}` is a number or a text"))?;
    text.parse().map_err(|error| format!("`{key}`: {error}"))
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(is_on) => Some(is_on.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

/// A key that is an option of the command line.
fn setting(place: &str, key: &str, value: &Value, own_keys: &[&str]) -> Result<Setting, String> {
    if !is_setting(key) {
        let names = setting_names();
        let known = names.iter().map(String::as_str).chain(own_keys.iter().copied());
        let wanted = key.replace('_', "-");
        let near = tokenmill_server::near_names(&wanted, known).join("`, `");
        let near = if near.is_empty() {
            String::new()
        } else {
            format!("; near it: `{near}`")
        };
        return Err(format!("{place}: unknown key `{key}`{near}"));
    }
    let values = match value {
        Value::Array(items) => items.iter().map(scalar).collect::<Option<Vec<String>>>(),
        one => scalar(one).map(|text| vec![text]),
    };
    let values = values
        .ok_or_else(|| format!("{place}: `{key}` is a number, a text, true or false, or a list of these"))?;
    Ok((key.to_owned(), values.into_iter().map(OsString::from).collect()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_is_read_in_its_order() {
        let file = ModelsFile::parse(
            "memory_budget = \"2GiB\"\nidle-unload = 90\n[defaults]\nctx_size = 64\n\
             [models.zeta]\nmodel = \"z.gguf\"\nalias = \"gpt-4o\"\npin = true\n\
             [models.\"org/a:Q8_0\"]\nmodel = \"a\"\nctx-size = 32\ncpu-moe = true\nidle-unload = \"5m\"\n\
             lora = [\"x=x.gguf\", \"y=y.gguf\"]\nembedding = true\nalias = [\"b\", \"c\"]\n",
        )
        .expect("the file is right");
        assert_eq!(file.memory_budget.map(|size| size.0), Some(2 << 30));
        assert_eq!(file.idle_unload, Some(KeepAlive::For(Duration::from_secs(90))));
        let [zeta, other] = &file.models[..] else {
            panic!("{file:?}")
        };
        assert_eq!(
            (zeta.name.as_str(), zeta.model.as_str(), zeta.is_pinned),
            ("zeta", "z.gguf", true)
        );
        assert_eq!(
            (zeta.alias.as_slice(), zeta.settings.len()),
            (&["gpt-4o".to_owned()][..], 1)
        );
        assert_eq!(
            (other.name.as_str(), other.is_embedding, other.alias.len()),
            ("org/a:Q8_0", true, 2)
        );
        assert_eq!(other.idle_unload, Some(KeepAlive::For(Duration::from_mins(5))));
        assert_eq!(other.settings.len(), 4);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            (
                "[models.a]\nmodel = \"a\"\nctx-sise = 3\n",
                "[models.a]: unknown key `ctx-sise`; near it: `ctx-size`",
            ),
            (
                "[models.a]\nmodel = \"a\"\nalais = 3\n",
                "[models.a]: unknown key `alais`; near it: `alias`",
            ),
            ("[models.a]\nctx-size = 3\n", "[models.a]: `model` is missing"),
            ("[models.a]\nmodel = 3\n", "[models.a]: `model` is a text"),
            (
                "[models.a]\nmodel = \"a\"\npin = 1\n",
                "[models.a]: `pin` is either true or false",
            ),
            (
                "[models.a]\nmodel = \"a\"\nidle-unload = \"soon\"\n",
                "[models.a]: `idle-unload`: expected a time",
            ),
            (
                "[models.a]\nmodel = \"a\"\nctx-size = [[1]]\n",
                "[models.a]: `ctx-size` is a number",
            ),
            (
                "[defaults]\nmodel = \"a\"\n[models.a]\nmodel = \"a\"\n",
                "[defaults]: unknown key `model`",
            ),
            ("models = 3\n", "[models] is not a table"),
            ("[models]\na = 3\n", "[models.a] is not a table"),
            ("port = 80\n[models.a]\nmodel = \"a\"\n", "unknown key `port`"),
            ("memory-budget = \"much\"\n", "`memory-budget`: expected a size"),
            (
                "[models.a]\nmodel = \"a\"\n[models.a]\nmodel = \"b\"\n",
                "line 3: ",
            ),
            ("[models.a\n", "line 1: "),
            ("", "it lists no model"),
        ] {
            let error = ModelsFile::parse(text).expect_err(text);
            assert!(
                error.starts_with(expected) && !error.contains('\n'),
                "{text:?}: {error}"
            );
        }
    }
}
