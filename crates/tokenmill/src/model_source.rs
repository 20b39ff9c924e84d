//! [`ModelSource`]: the location of a model, and the files that accompany its network.
//!
//! A vocabulary or a template can be read without the network. Invariant: a folder is one model, or an error
//! that lists its contents; nothing is guessed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tokenmill_gguf::{GgufError, GgufFile, Metadata, NextnName, RegularFile, part_of_name};
use tokenmill_model::Model;
use tokenmill_text::Tokenizer;

use crate::Error;

/// The name of the built-in model: 3.5 million parameters, trained by this project, so that everything can be tried
/// without a download.
const DEMO_NAME: &str = "demo";

/// The tokenizer of a Hugging Face folder.
pub(crate) const TOKENIZER_JSON: &str = "tokenizer.json";
/// Longest file with text of a folder. Tokenizers of the largest vocabularies have some 30 MB.
const MAX_JSON_BYTES: usize = 256 << 20;

/// Where a model lies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSource {
    /// The built-in model.
    Demo,
    /// A GGUF file.
    File(PathBuf),
    /// A Hugging Face folder with safetensors.
    Folder(PathBuf),
}

/// The inputs of a chat besides tokens, from a GGUF file's metadata or a folder's JSON files.
#[derive(Debug, Default)]
pub struct ChatFiles {
    /// The chat template.
    pub template: Option<String>,
    /// Text of the token that begins a sequence.
    pub bos_token: String,
    /// Text of the token that ends a sequence.
    pub eos_token: String,
    /// Tokens that end a generation, besides those the tokenizer knows.
    pub end_ids: Vec<u32>,
}

impl ModelSource {
    /// Finds the model that `path` names: `demo`, a GGUF file, a folder with one, or a Hugging Face folder.
    ///
    /// # Errors
    /// [`Error::NoModel`] and [`Error::SeveralModels`] of a folder, or [`Error::Read`]. Whether a file exists shows when it
    /// is opened.
    pub fn find(path: impl AsRef<Path>) -> Result<Self, Error> {
        let argument = path.as_ref();
        if argument.as_os_str() == DEMO_NAME {
            return Ok(Self::Demo);
        }
        if !argument.is_dir() {
            return Ok(Self::File(argument.to_owned()));
        }
        let entries = fs::read_dir(argument).map_err(unreadable(argument))?;
        let names: Vec<String> = entries
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let mut models: Vec<&String> = (names.iter())
            .filter(|name| {
                let extension = Path::new(name).extension();
                extension.is_some_and(|extension| extension == "gguf")
                    && !is_later_part(name)
                    && !is_projector_name(name)
                    && NextnName::of(name).is_none()
            })
            .collect();
        models.sort();
        match models[..] {
            [name] => Ok(Self::File(argument.join(name))),
            [] if holds_only_pickles(&names) => Err(Error::OnlyPickles {
                folder: argument.to_owned(),
            }),
            [] if names.iter().any(|name| name == "config.json") => Ok(Self::Folder(argument.to_owned())),
            [] => Err(Error::NoModel {
                folder: argument.to_owned(),
            }),
            _ => Err(Error::SeveralModels {
                folder: argument.to_owned(),
                names: models.into_iter().cloned().collect(),
            }),
        }
    }

    /// Looks whether there is anything to open.
    ///
    /// # Errors
    /// A file that does not exist, or may not be looked at.
    pub fn check(&self) -> Result<(), Error> {
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
    pub fn open_network(&self) -> Result<Model, Error> {
        Ok(match self {
            Self::Demo => Model::from_gguf(demo()?)?,
            Self::File(path) | Self::Folder(path) => Model::open(path)?,
        })
    }

    /// Opens the GGUF file; `None` for a folder with safetensors.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn open_gguf(&self) -> Result<Option<GgufFile>, Error> {
        Ok(match self {
            Self::Demo => Some(demo()?),
            Self::File(path) => Some(GgufFile::open(path)?),
            Self::Folder(_) => None,
        })
    }

    /// Reads the tokenizer; `gguf` is the file of this source, if it has one.
    ///
    /// # Errors
    /// Fails if the vocabulary cannot be used.
    pub fn tokenizer(&self, gguf: Option<&GgufFile>) -> Result<Tokenizer, Error> {
        match (self, gguf) {
            (Self::Folder(folder), None) => {
                let path = folder.join(TOKENIZER_JSON);
                let bytes = RegularFile::read_in_folder(folder, TOKENIZER_JSON, MAX_JSON_BYTES);
                read_tokenizer_json(&path, bytes)
            }
            (_, file) => {
                let empty = Metadata::new();
                let metadata = file.map_or(&empty, GgufFile::metadata);
                Tokenizer::from_gguf(metadata).map_err(|source| Error::Tokenizer {
                    path: self.path().to_owned(),
                    source,
                })
            }
        }
    }

    /// The tokenizer of a model of this source.
    ///
    /// # Errors
    /// A vocabulary that cannot be used, or is wider than the network. (Networks may be wider, for round sizes.)
    pub fn tokenizer_of(&self, model: &Model) -> Result<Tokenizer, Error> {
        let tokenizer = self.tokenizer(model.gguf())?;
        let n_rows = model.descriptor().n_vocab;
        if tokenizer.n_vocab() > n_rows {
            return Err(Error::VocabularyTooWide {
                n_tokens: tokenizer.n_vocab(),
                n_rows,
            });
        }
        Ok(tokenizer)
    }

    /// Reads the chat template; base models have none. `gguf` is the file of this source, if it has one.
    ///
    /// # Errors
    /// Fails on metadata of the wrong type, and on a file that is not JSON or not UTF-8.
    pub fn chat_template(&self, gguf: Option<&GgufFile>) -> Result<Option<String>, Error> {
        let (Self::Folder(folder), None) = (self, gguf) else {
            let template = gguf.map(|file| file.metadata().opt_str("tokenizer.chat_template"));
            return Ok(template.transpose()?.flatten().map(str::to_owned));
        };
        let Some(bytes) = optional_file(folder, "chat_template.jinja")? else {
            let config = optional_json(folder, "tokenizer_config.json")?;
            return Ok(config["chat_template"].as_str().map(str::to_owned));
        };
        let text = String::from_utf8(bytes).map_err(|_| Error::NotUtf8 {
            path: folder.join("chat_template.jinja"),
        })?;
        Ok(Some(text))
    }

    /// Reads the inputs of a chat; `gguf` is the file of this source, if it has one.
    ///
    /// # Errors
    /// Metadata of the wrong type, or a file that is not JSON.
    pub fn chat_files(&self, gguf: Option<&GgufFile>, tokenizer: &Tokenizer) -> Result<ChatFiles, Error> {
        let (Self::Folder(folder), None) = (self, gguf) else {
            let text_of = |id: Option<u32>| {
                let bytes = id.and_then(|id| tokenizer.token_bytes(id)).unwrap_or_default();
                String::from_utf8_lossy(bytes).into_owned()
            };
            return Ok(ChatFiles {
                template: self.chat_template(gguf)?,
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
        let mut end_ids = Vec::new();
        for name in ["generation_config.json", "config.json"] {
            let ids = &optional_json(folder, name)?["eos_token_id"];
            let ids = ids.as_array().cloned().unwrap_or_else(|| vec![ids.clone()]);
            end_ids.extend(ids.iter().filter_map(Value::as_u64).map(|id| id as u32));
        }
        let (bos_token, eos_token) = (token("bos_token"), token("eos_token"));
        end_ids.extend(tokenizer.special_token(&eos_token));
        Ok(ChatFiles {
            template: self.chat_template(gguf)?,
            bos_token,
            eos_token,
            end_ids,
        })
    }

    /// The configuration of a folder; null for others.
    ///
    /// # Errors
    /// A file that is not JSON.
    pub fn config_json(&self) -> Result<Value, Error> {
        match self {
            Self::Folder(folder) => optional_json(folder, "config.json"),
            _ => Ok(Value::Null),
        }
    }

    /// Its path; of the built-in model its name.
    pub fn path(&self) -> &Path {
        match self {
            Self::Demo => Path::new(DEMO_NAME),
            Self::File(path) | Self::Folder(path) => path,
        }
    }

    /// Returns the model's display name. A folder of Hugging Face's cache is named for a commit, so this
    /// returns the name of its repository. A file in Ollama's folder is named for its bytes, so this returns
    /// Ollama's name if it can be found (with the feature `hub`).
    pub fn name(&self) -> String {
        let path = self.path();
        if let Some(repository) = repository_of_snapshot(path) {
            return repository;
        }
        #[cfg(feature = "hub")]
        if let Some(name) = tokenmill_hub::ollama::name_of(path) {
            return name.short();
        }
        (path.file_name().unwrap_or(path.as_os_str()))
            .to_string_lossy()
            .into_owned()
    }
}

/// `OWNER/REPOSITORY` of a path that ends in `models--OWNER--REPOSITORY/snapshots/COMMIT`.
fn repository_of_snapshot(path: &Path) -> Option<String> {
    let snapshots = path.parent()?;
    let folder = snapshots.parent()?.file_name()?.to_str()?;
    let is_snapshot = snapshots.file_name()? == "snapshots";
    let repository = folder.strip_prefix("models--").filter(|_| is_snapshot)?;
    Some(repository.replacen("--", "/", 1))
}

/// The tokenizer of a `tokenizer.json`.
///
/// # Errors
/// A file that cannot be read, or describes no tokenizer that is known.
pub fn tokenizer_json(path: impl AsRef<Path>) -> Result<Tokenizer, Error> {
    let path = path.as_ref();
    read_tokenizer_json(path, RegularFile::read(path, MAX_JSON_BYTES))
}

fn read_tokenizer_json(path: &Path, bytes: io::Result<Vec<u8>>) -> Result<Tokenizer, Error> {
    let bytes = bytes.map_err(unreadable(path))?;
    Tokenizer::from_tokenizer_json(&bytes).map_err(|source| Error::Tokenizer {
        path: path.to_owned(),
        source,
    })
}

/// The file of the built-in model.
#[cfg(feature = "demo")]
fn demo() -> Result<GgufFile, Error> {
    const DEMO_GGUF: &[u8] = include_bytes!("../assets/tokenmill-demo-Q8_0.gguf");
    Ok(GgufFile::from_bytes(DEMO_GGUF)?)
}

#[cfg(not(feature = "demo"))]
fn demo() -> Result<GgufFile, Error> {
    Err(Error::NoDemo)
}

/// A file of a model's folder; `None` where there is none.
pub(crate) fn optional_file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, Error> {
    match RegularFile::read_in_folder(folder, name, MAX_JSON_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&folder.join(name))(error)),
    }
}

/// A JSON file of a model's folder; null where there is none.
pub(crate) fn optional_json(folder: &Path, name: &str) -> Result<Value, Error> {
    let Some(bytes) = optional_file(folder, name)? else {
        return Ok(Value::Null);
    };
    serde_json::from_slice(&bytes).map_err(|source| Error::NotJson {
        path: folder.join(name),
        source,
    })
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Error + use<'_> {
    |source| Error::Read {
        path: path.to_owned(),
        source,
    }
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

/// Whether a file's name is that of an encoder.
pub(crate) fn is_projector_name(name: &str) -> bool {
    let extension = Path::new(name).extension();
    let is_gguf = extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    is_gguf && name.to_ascii_lowercase().contains("mmproj")
}

/// Whether a name is part 2 or later of a split model, `…-00002-of-00003.gguf`.
fn is_later_part(name: &str) -> bool {
    part_of_name(name.trim_end_matches(".gguf")).is_some_and(|(_, no, _)| no != 1)
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
    fn encoders_are_known_by_their_names() {
        assert!(is_projector_name("mmproj-model-f16.gguf"));
        assert!(is_projector_name("gemma-3-4b.mmproj-Q8_0.gguf"));
        assert!(!is_projector_name("model.gguf"));
        assert!(!is_projector_name("mmproj.txt"));
    }

    #[test]
    fn a_snapshot_is_called_by_its_repository() {
        let name = |path: &str| ModelSource::Folder(path.into()).name();
        assert_eq!(name("/c/models--a--b-1/snapshots/0123"), "a/b-1");
        assert_eq!(name("/c/b/snapshots/0123"), "0123");
        assert_eq!(
            ModelSource::File("/c/models--a--b/snapshots/0123/m.gguf".into()).name(),
            "m.gguf"
        );
    }

    #[test]
    fn demo_is_a_name_and_a_path_with_a_slash_is_a_file() {
        assert_eq!(ModelSource::find("demo").unwrap(), ModelSource::Demo);
        assert_eq!(
            ModelSource::find("./demo").unwrap(),
            ModelSource::File("./demo".into())
        );
    }
}
