//! [`ModelSource`]: what MODEL on the command line means.
//!
//! Separate because every command takes one. Invariant: a folder is one model or an error that lists what it holds;
//! nothing is guessed.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tokenmill_gguf::{GgufError, GgufFile, Metadata, RegularFile};
use tokenmill_model::Model;
use tokenmill_text::Tokenizer;

use crate::{
    demo::{DEMO_GGUF, DEMO_NAME},
    failure::Failure,
};

/// What may stand for MODEL.
pub(crate) const WHAT_MODEL_IS: &str =
    "MODEL is a .gguf file, a folder with one, a Hugging Face folder, or `demo`";

/// The tokenizer of a Hugging Face folder.
const TOKENIZER_JSON: &str = "tokenizer.json";
/// Longest file with text of a folder. Tokenizers of the largest vocabularies have some 30 MB.
const MAX_JSON_BYTES: usize = 256 << 20;

/// A model named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelSource {
    /// The one inside the program.
    Demo,
    /// A GGUF file.
    File(PathBuf),
    /// A Hugging Face folder with safetensors.
    Folder(PathBuf),
}

/// What a chat needs besides tokens, from a GGUF file's metadata or a folder's JSON files.
#[derive(Debug, Default)]
pub(crate) struct ChatFiles {
    /// The chat template.
    pub(crate) template: Option<String>,
    /// Text of the token that begins a sequence.
    pub(crate) bos_token: String,
    /// Text of the token that ends a sequence.
    pub(crate) eos_token: String,
    /// Tokens that end a generation, besides those the tokenizer knows.
    pub(crate) end_ids: Vec<u32>,
}

impl ModelSource {
    /// Finds what `argument` names.
    ///
    /// # Errors
    /// A folder without a model, or with several.
    pub(crate) fn find(argument: &Path) -> Result<Self, Failure> {
        if argument.as_os_str() == DEMO_NAME {
            return Ok(Self::Demo);
        }
        if !argument.is_dir() {
            return Ok(Self::File(argument.to_owned()));
        }
        let entries = fs::read_dir(argument).map_err(|error| Failure::unreadable(argument, &error))?;
        let names: Vec<String> = entries
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let mut models: Vec<&String> = names
            .iter()
            .filter(|name| {
                let extension = Path::new(name).extension();
                extension.is_some_and(|extension| extension == "gguf") && !is_later_part(name)
            })
            .collect();
        models.sort();
        match models[..] {
            [name] => Ok(Self::File(argument.join(name))),
            [] if holds_only_pickles(&names) => Err(Failure::input(format!(
                "folder {} holds its weights as PyTorch files only",
                argument.display()
            ))
            .hint("such files are programs and are not read: convert them to safetensors or GGUF, or fetch those")),
            [] if names.iter().any(|name| name == "config.json") => Ok(Self::Folder(argument.to_owned())),
            [] => Err(Failure::input(format!(
                "folder {} holds neither a .gguf file nor a config.json",
                argument.display()
            ))
            .hint(WHAT_MODEL_IS)),
            _ => Err(
                Failure::input(format!("folder {} holds several models", argument.display()))
                    .hint(format!("name one: {}", join(&models))),
            ),
        }
    }

    /// Looks whether there is anything to open.
    ///
    /// # Errors
    /// A file that does not exist, or may not be looked at.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let (Self::File(path) | Self::Folder(path)) = self else {
            return Ok(());
        };
        fs::metadata(path).map(|_| ()).map_err(|reason| {
            let path = path.clone();
            GgufError::Io { path, reason }.into()
        })
    }

    /// Opens the network; only headers are read.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub(crate) fn open_model(&self) -> Result<Model, Failure> {
        Ok(match self {
            Self::Demo => Model::from_gguf(GgufFile::from_bytes(DEMO_GGUF)?)?,
            Self::File(path) | Self::Folder(path) => Model::open(path)?,
        })
    }

    /// Opens the GGUF file; `None` for a folder with safetensors.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub(crate) fn open_gguf(&self) -> Result<Option<GgufFile>, Failure> {
        Ok(match self {
            Self::Demo => Some(GgufFile::from_bytes(DEMO_GGUF)?),
            Self::File(path) => Some(GgufFile::open(path)?),
            Self::Folder(_) => None,
        })
    }

    /// The tokenizer; `gguf` is the file of this source, where it is one.
    ///
    /// # Errors
    /// A vocabulary that cannot be used.
    pub(crate) fn tokenizer(&self, gguf: Option<&GgufFile>) -> Result<Tokenizer, Failure> {
        match (self, gguf) {
            (Self::Folder(folder), None) => {
                let path = folder.join(TOKENIZER_JSON);
                let bytes = RegularFile::read_in_folder(folder, TOKENIZER_JSON, MAX_JSON_BYTES);
                read_tokenizer_json(&path, bytes)
            }
            (_, file) => {
                let empty = Metadata::new();
                let metadata = file.map_or(&empty, GgufFile::metadata);
                Tokenizer::from_gguf(metadata).map_err(|error| {
                    Failure::input(format!("{}: its tokenizer cannot be used: {error}", self.path()))
                        .hint("`tokenmill tokenize` also takes the tokenizer.json of the model")
                })
            }
        }
    }

    /// The tokenizer of a model of this source.
    ///
    /// # Errors
    /// A vocabulary that cannot be used, or is wider than the network. (Networks may be wider, for round sizes.)
    pub(crate) fn tokenizer_of(&self, model: &Model) -> Result<Tokenizer, Failure> {
        let tokenizer = self.tokenizer(model.gguf())?;
        let n_rows = model.descriptor().n_vocab;
        if tokenizer.n_vocab() > n_rows {
            return Err(Failure::input(format!(
                "the tokenizer has {} tokens, but the network only {n_rows}",
                tokenizer.n_vocab()
            )));
        }
        Ok(tokenizer)
    }

    /// What a chat needs; `gguf` is the file of this source, where it is one.
    ///
    /// # Errors
    /// Metadata of the wrong type, or a file that is not JSON.
    pub(crate) fn chat_files(
        &self,
        gguf: Option<&GgufFile>,
        tokenizer: &Tokenizer,
    ) -> Result<ChatFiles, Failure> {
        let (Self::Folder(folder), None) = (self, gguf) else {
            let text_of = |id: Option<u32>| {
                let bytes = id.and_then(|id| tokenizer.token_bytes(id)).unwrap_or_default();
                String::from_utf8_lossy(bytes).into_owned()
            };
            let template = match gguf {
                Some(file) => file.metadata().opt_str("tokenizer.chat_template")?,
                None => None,
            };
            return Ok(ChatFiles {
                template: template.map(str::to_owned),
                bos_token: text_of(tokenizer.bos()),
                eos_token: text_of(tokenizer.eos()),
                end_ids: Vec::new(),
            });
        };
        let config = optional_json(folder, "tokenizer_config.json")?;
        let token = |name: &str| {
            let token = &config[name];
            let text = token.as_str().or_else(|| token["content"].as_str());
            text.unwrap_or_default().to_owned()
        };
        let template = match optional_file(folder, "chat_template.jinja")? {
            Some(bytes) => Some(String::from_utf8(bytes).map_err(|_| {
                let path = folder.join("chat_template.jinja");
                Failure::input(format!("{} is not UTF-8 text", path.display()))
            })?),
            None => config["chat_template"].as_str().map(str::to_owned),
        };
        let mut end_ids = Vec::new();
        for name in ["generation_config.json", "config.json"] {
            let ids = &optional_json(folder, name)?["eos_token_id"];
            let ids = ids.as_array().cloned().unwrap_or_else(|| vec![ids.clone()]);
            end_ids.extend(ids.iter().filter_map(Value::as_u64).map(|id| id as u32));
        }
        let (bos_token, eos_token) = (token("bos_token"), token("eos_token"));
        end_ids.extend(tokenizer.special_token(&eos_token));
        Ok(ChatFiles {
            template,
            bos_token,
            eos_token,
            end_ids,
        })
    }

    /// The configuration of a folder; null for others.
    ///
    /// # Errors
    /// A file that is not JSON.
    pub(crate) fn config_json(&self) -> Result<Value, Failure> {
        match self {
            Self::Folder(folder) => optional_json(folder, "config.json"),
            _ => Ok(Value::Null),
        }
    }

    /// Where it is, for messages.
    fn path(&self) -> String {
        match self {
            Self::Demo => DEMO_NAME.to_owned(),
            Self::File(path) | Self::Folder(path) => path.display().to_string(),
        }
    }

    /// What to call it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Demo => DEMO_NAME.to_owned(),
            Self::File(path) | Self::Folder(path) => path
                .file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy()
                .into_owned(),
        }
    }
}

/// The tokenizer of a `tokenizer.json`.
///
/// # Errors
/// A file that cannot be read, or describes no tokenizer that is known.
pub(crate) fn tokenizer_json(path: &Path) -> Result<Tokenizer, Failure> {
    read_tokenizer_json(path, RegularFile::read(path, MAX_JSON_BYTES))
}

fn read_tokenizer_json(path: &Path, bytes: io::Result<Vec<u8>>) -> Result<Tokenizer, Failure> {
    const HINT: &str =
        "a Hugging Face folder has its tokenizer in tokenizer.json; a .gguf file holds its own";
    let bytes = bytes.map_err(|error| Failure::unreadable(path, &error).hint(HINT))?;
    Tokenizer::from_tokenizer_json(&bytes).map_err(|error| {
        let reason = match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        Failure::input(format!("{}: {reason}", path.display())).hint(HINT)
    })
}

/// A file of a model's folder; `None` where there is none.
fn optional_file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    match RegularFile::read_in_folder(folder, name, MAX_JSON_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::unreadable(&folder.join(name), &error)),
    }
}

/// A JSON file of a model's folder; null where there is none.
fn optional_json(folder: &Path, name: &str) -> Result<Value, Failure> {
    let Some(bytes) = optional_file(folder, name)? else {
        return Ok(Value::Null);
    };
    serde_json::from_slice(&bytes)
        .map_err(|error| Failure::input(format!("{} is not JSON: {error}", folder.join(name).display())))
}

/// Whether the weights of a folder are in PyTorch's own format, and in no other.
fn holds_only_pickles(names: &[String]) -> bool {
    let has = |extension: &str, start: &str| {
        (names.iter()).any(|name| {
            name.starts_with(start) && Path::new(name).extension().is_some_and(|end| end == extension)
        })
    };
    !has("safetensors", "") && (has("bin", "pytorch_model") || has("pth", "") || has("pt", ""))
}

/// Whether a name is part 2 or later of a split model, `…-00002-of-00003.gguf`.
fn is_later_part(name: &str) -> bool {
    let stem = name.trim_end_matches(".gguf");
    let Some((before, count)) = stem.rsplit_once("-of-") else {
        return false;
    };
    let no = before.rsplit('-').next().unwrap_or_default();
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    is_number(count) && is_number(no) && no != "00001"
}

/// The first few names of a list.
fn join(names: &[&String]) -> String {
    const MAX_SHOWN: usize = 5;
    let shown: Vec<&str> = names.iter().take(MAX_SHOWN).map(|name| name.as_str()).collect();
    let rest = names.len().saturating_sub(MAX_SHOWN);
    if rest == 0 {
        shown.join(", ")
    } else {
        format!("{} and {rest} more", shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_parts_are_not_models_of_their_own() {
        assert!(is_later_part("m-00002-of-00003.gguf"));
        assert!(!is_later_part("m-00001-of-00003.gguf"));
        assert!(!is_later_part("one-of-many.gguf"));
    }

    #[test]
    fn demo_is_a_name_and_a_path_with_a_slash_is_a_file() {
        assert_eq!(ModelSource::find(Path::new("demo")).unwrap(), ModelSource::Demo);
        assert_eq!(
            ModelSource::find(Path::new("./demo")).unwrap(),
            ModelSource::File("./demo".into())
        );
    }
}
