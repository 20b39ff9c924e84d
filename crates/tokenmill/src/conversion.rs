//! [`Conversion`]: a Hugging Face folder to a GGUF file.
//!
//! It joins the network's keys and tensors, the tokenizer's keys and the writing of files, each from its own
//! crate. Invariant: a folder that could not be loaded is not converted; missing and damaged parts are
//! reported before anything is written.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tokenmill_convert::{ImportanceMatrix, OutType, QuantizeProgress, QuantizeSummary, Writer};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::Metadata;
use tokenmill_model::{FolderAsGguf, Model, ModelOptions, VisionFolder, WeightSource};
use tokenmill_quant::CpuFeatures;
use tokenmill_text::{EncodeOptions, Tokenizer, VocabularyFiles};

use crate::{
    Error,
    model_source::{ModelSource, TOKENIZER_JSON, optional_file, optional_json},
};

/// A folder that is to become a file.
pub struct Conversion {
    folder: PathBuf,
    name: String,
    source: Source,
    sampling: Metadata,
    importance: Option<ImportanceMatrix>,
}

/// The part of a folder that becomes a file.
enum Source {
    /// The network that writes.
    Network {
        network: Box<FolderAsGguf>,
        vocabulary: Metadata,
    },
    /// Its image encoder.
    Encoder(Box<VisionFolder>),
}

impl Source {
    fn architecture(&self) -> &'static str {
        match self {
            Self::Network { network, .. } => network.architecture(),
            Self::Encoder(encoder) => encoder.architecture(),
        }
    }

    fn keys(&self) -> &Metadata {
        match self {
            Self::Network { network, .. } => network.keys(),
            Self::Encoder(encoder) => encoder.keys(),
        }
    }

    fn weights(&self) -> &dyn WeightSource {
        match self {
            Self::Network { network, .. } => network.weights(),
            Self::Encoder(encoder) => encoder.weights(),
        }
    }
}

/// Keys of `generation_config.json`, and their names in files.
const SAMPLING: [(&str, &str); 4] = [
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("temperature", "temp"),
];

/// Texts that tokenizers cut differently, by their contents.
const PROBES: [(&str, &str); 6] = [
    (
        "words and numbers",
        "Hello world! It's 12345 apples; UPPER lower 3.14 ''quotes''",
    ),
    ("accents and other scripts", "naïve café — 東京 \u{1f600}"),
    ("a space at their beginning", " leading space"),
    ("a space at their end", "a last word "),
    ("several spaces in a row", "two  and   three"),
    ("line breaks and tabs", "done.\n\n\tx = 1;\r\nend"),
];

/// Texts that tokenizers may still cut differently if they agree on all of [`PROBES`].
const MIXED_PROBES: [&str; 2] = [
    "Hello world! It's 12345 apples, naïve café — 東京 \u{1f600}  done.\n\n\tx = 1;",
    " leading space, UPPER lower 3.14 ''quotes''\r\nend ",
];

/// Texts that a file's tokenizer cuts otherwise than the folder's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDifferences {
    /// The contents of the texts, in words.
    pub texts: Vec<&'static str>,
    /// Whether another pre-tokenizer may cut them rightly: of other kinds of tokenizers a file says everything but these texts.
    pub depends_on_pre: bool,
}

impl Conversion {
    /// Opens a folder with `config.json`, safetensors files and a tokenizer, and checks that it has
    /// everything its network needs. `pre` names the pre-tokenizer if it cannot be detected.
    ///
    /// # Errors
    /// [`Error`] if something is missing, is damaged, or has no place in a GGUF file.
    pub fn open(folder: impl AsRef<Path>, pre: Option<&str>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let source = ModelSource::Folder(folder.to_owned());
        // A dry load finds tensors that are missing, or have other shapes.
        let backend =
            CpuBackend::new(Some(1), CpuFeatures::detect()).map_err(tokenmill_model::LoadError::from)?;
        Model::open(folder)?.plan(&backend, &ModelOptions::default())?;
        let network = FolderAsGguf::open(folder)?;
        network.check(&backend)?;
        let files = VocabularyFiles {
            tokenizer_json: optional_file(folder, TOKENIZER_JSON)?,
            sentencepiece: optional_file(folder, "tokenizer.model")?,
            tokenizer_config: optional_json(folder, "tokenizer_config.json")?,
            added_tokens: optional_json(folder, "added_tokens.json")?,
            config: source.config_json()?,
            chat_template: chat_template(folder)?,
            n_vocab: network.descriptor().n_vocab,
            pre: pre.map(str::to_owned),
            keeps_merges: network.architecture() == "gemma4",
        };
        if files.tokenizer_json.is_none() && files.sentencepiece.is_none() {
            return Err(Error::NoTokenizer {
                folder: folder.to_owned(),
            });
        }
        let vocabulary = files.metadata().map_err(|source| Error::Tokenizer {
            path: folder.to_owned(),
            source,
        })?;
        Self::of(
            folder,
            Source::Network {
                network: Box::new(network),
                vocabulary,
            },
        )
    }

    /// Opens a folder whose image encoder is to become a file, `mmproj-*.gguf`, and checks that all it needs is there.
    ///
    /// # Errors
    /// [`Error`]: a folder without an encoder, an unsupported family, and missing or damaged parts.
    pub fn open_encoder(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let backend =
            CpuBackend::new(Some(1), CpuFeatures::detect()).map_err(tokenmill_model::LoadError::from)?;
        let encoder = VisionFolder::open(folder)?;
        encoder.check(&backend)?;
        Self::of(folder, Source::Encoder(Box::new(encoder)))
    }

    fn of(folder: &Path, source: Source) -> Result<Self, Error> {
        let path = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let name = ModelSource::Folder(path).name();
        let name = name.rsplit('/').next().unwrap_or(&name);
        Ok(Self {
            name: title(name),
            source,
            sampling: sampling(&optional_json(folder, "generation_config.json")?)?,
            folder: folder.to_owned(),
            importance: None,
        })
    }

    /// Whether the folder has an image encoder that [`Self::open_encoder`] makes a file of, and this is not it.
    pub fn leaves_encoder(&self) -> bool {
        matches!(self.source, Source::Network { .. })
            && VisionFolder::is_in(&self.folder).is_ok_and(|is_in| is_in)
    }

    /// Weighs the errors of quantized weights by an importance matrix, for types that `quantize` makes.
    #[must_use]
    pub fn importance(mut self, matrix: ImportanceMatrix) -> Self {
        self.importance = Some(matrix);
        self
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> &'static str {
        self.source.architecture()
    }

    /// Which texts the file's tokenizer cuts otherwise than the folder's, as far as some texts show it; `None` where it cuts all alike, and
    /// where the folder has no `tokenizer.json` to compare with.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]: a vocabulary that this crate cannot use.
    pub fn token_differences(&self) -> Result<Option<TokenDifferences>, Error> {
        let path = self.folder.join(TOKENIZER_JSON);
        let Source::Network { vocabulary, .. } = &self.source else {
            return Ok(None);
        };
        if !path.is_file() {
            return Ok(None);
        }
        let of_folder = crate::model_source::tokenizer_json(&path)?;
        // Readers know some tokenizers by the model.
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", self.architecture())?;
        metadata.insert("general.name", self.name.as_str())?;
        for (key, value) in vocabulary.iter() {
            metadata.insert(key, value.clone())?;
        }
        let of_file = Tokenizer::from_gguf(&metadata).map_err(|source| Error::Tokenizer {
            path: self.folder.clone(),
            source,
        })?;
        let plain = EncodeOptions {
            add_special: false,
            ..EncodeOptions::default()
        };
        let is_same = |text: &str| of_folder.encode(text, plain) == of_file.encode(text, plain);
        let differing = PROBES.iter().filter(|(_, text)| !is_same(text));
        let mut texts: Vec<&str> = differing.map(|(what, _)| *what).collect();
        if texts.is_empty() && !MIXED_PROBES.into_iter().all(is_same) {
            texts.push("a mixture of several kinds of characters");
        }
        let model = metadata.opt_str("tokenizer.ggml.model")?;
        Ok((!texts.is_empty()).then(|| TokenDifferences {
            texts,
            depends_on_pre: model == Some("gpt2"),
        }))
    }

    /// The tensors in the order of the file, to be written as `out`.
    fn writer(&self, out: OutType) -> Result<Writer<'_>, Error> {
        let weights = self.source.weights();
        let mut infos = weights.infos();
        infos.sort_by(|a, b| order(&a.name).cmp(&order(&b.name)));
        let tensors = infos.into_iter().filter_map(|info| {
            let tensor = weights.tensor(&info.name)?;
            Some((info.name, info.ty, info.dims, tensor.bytes))
        });
        let mut writer = Writer::new(tensors, out)?;
        if let Source::Encoder(encoder) = &self.source {
            if let OutType::Preset(_) = out {
                return Err(Error::EncoderType { out: out.to_string() });
            }
            writer = writer.exception(encoder.own_types());
        }
        Ok(match &self.importance {
            Some(matrix) => writer.importance(matrix),
            None => writer,
        })
    }

    /// The metadata of the file.
    fn metadata(&self, writer: &Writer<'_>, out: OutType) -> Result<Metadata, Error> {
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", self.architecture())?;
        let kind = match self.source {
            Source::Network { .. } => "model",
            Source::Encoder(_) => "mmproj",
        };
        metadata.insert("general.type", kind)?;
        for (key, value) in self.sampling.iter() {
            metadata.insert(key, value.clone())?;
        }
        metadata.insert("general.name", self.name.as_str())?;
        if let Some(label) = writer.size_label() {
            metadata.insert("general.size_label", label.as_str())?;
        }
        for (key, value) in self.source.keys().iter() {
            metadata.insert(key, value.clone())?;
        }
        // A quantizer writes the keys of its type after the others.
        let is_preset = matches!(out, OutType::Preset(_));
        if !is_preset {
            metadata.insert("general.file_type", writer.file_type())?;
            metadata.insert("general.quantization_version", writer.quantization_version())?;
        }
        if let Source::Network { vocabulary, .. } = &self.source {
            for (key, value) in vocabulary.iter() {
                metadata.insert(key, value.clone())?;
            }
        }
        if is_preset {
            for (key, value) in writer.keys_of_type() {
                metadata.insert(key, value)?;
            }
        }
        Ok(metadata)
    }

    /// Describes the output without writing it.
    ///
    /// # Errors
    /// [`Error::Convert`]: inputs that do not match, such as an importance matrix of another model.
    pub fn plan(&self, out: OutType) -> Result<QuantizeSummary, Error> {
        let writer = self.writer(out)?;
        Ok(writer.plan(&self.metadata(&writer, out)?)?)
    }

    /// Writes the file. It appears when it is whole; `on_progress` may stop the work.
    ///
    /// # Errors
    /// [`Error::Convert`]: a weight that is not a number, or a file that cannot be written.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        out: OutType,
        n_threads: Option<usize>,
        on_progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
    ) -> Result<QuantizeSummary, Error> {
        let mut writer = self.writer(out)?;
        if let Some(n_threads) = n_threads {
            writer = writer.threads(n_threads);
        }
        let metadata = self.metadata(&writer, out)?;
        Ok(writer.write(path, metadata, on_progress)?)
    }
}

/// By layer, tensors outside of layers first, then by name.
fn order(name: &str) -> (Option<usize>, &str) {
    let layer = name
        .strip_prefix("v.")
        .unwrap_or(name)
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.')?.0.parse().ok());
    (layer, name)
}

fn chat_template(folder: &Path) -> Result<Option<String>, Error> {
    if let Some(bytes) = optional_file(folder, "chat_template.jinja")? {
        return String::from_utf8(bytes).map(Some).map_err(|_| Error::NotUtf8 {
            path: folder.join("chat_template.jinja"),
        });
    }
    let json = optional_json(folder, "chat_template.json")?;
    Ok(json["chat_template"].as_str().map(str::to_owned))
}

/// The sampling that the model's makers recommend.
fn sampling(config: &Value) -> Result<Metadata, Error> {
    let mut metadata = Metadata::new();
    for (name, key) in SAMPLING {
        let key = format!("general.sampling.{key}");
        match (name, &config[name]) {
            ("top_k", value) => {
                if let Some(count) = value.as_i64().and_then(|count| i32::try_from(count).ok()) {
                    metadata.insert(key, count)?;
                }
            }
            (_, value) => {
                if let Some(number) = value.as_f64() {
                    metadata.insert(key, number as f32)?;
                }
            }
        }
    }
    Ok(metadata)
}

/// A folder's name as a title: words with a capital letter, unless they have one already or are a version.
fn title(name: &str) -> String {
    let words = name.split(['-', ' ']).filter(|word| !word.is_empty());
    let words = words.map(|word| {
        let is_version = word
            .strip_prefix('v')
            .unwrap_or(word)
            .starts_with(|c: char| c.is_ascii_digit());
        let is_lower = word.chars().any(char::is_lowercase) && !word.chars().any(char::is_uppercase);
        let mut chars = word.chars();
        match chars.next() {
            Some(first) if is_lower && !is_version => first.to_uppercase().chain(chars).collect(),
            _ => word.to_owned(),
        }
    });
    words.collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_a_title() {
        assert_eq!(title("hf"), "Hf");
        assert_eq!(title("Llama-3.2-1B-instruct"), "Llama 3.2 1B Instruct");
        assert_eq!(title("phi-v2"), "Phi v2");
    }
}
