//! [`VocabularyFiles`]: converts the tokenizer of a Hugging Face folder to the keys of a GGUF file.
//!
//! The readers make a running tokenizer; a GGUF file keeps the contents of a folder, token by token. Invariant: a list of tokens
//! is as long as the embeddings have rows, and every id is within it.
//!
//! Source: llama.cpp, `convert_hf_to_gguf.py`, and gguf-py's `SpecialVocab`, for the mapping of keys.

mod pre_names;
mod roles;
mod sentencepiece;

use std::collections::HashMap;

use serde_json::Value;
use tokenmill_gguf::{Metadata, StringArray};

use crate::{Tokenizer, TokenizerError};

use super::byte_level;

/// The files of a folder that describe its tokenizer. A null value means that the file is missing.
#[derive(Clone, Debug, Default)]
pub struct VocabularyFiles {
    /// `tokenizer.json`.
    pub tokenizer_json: Option<Vec<u8>>,
    /// `tokenizer.model`, SentencePiece's form.
    pub sentencepiece: Option<Vec<u8>>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Value,
    /// `added_tokens.json`.
    pub added_tokens: Value,
    /// `config.json`.
    pub config: Value,
    /// `chat_template.jinja`, or the contents of `chat_template.json`.
    pub chat_template: Option<String>,
    /// Rows of the embeddings.
    pub n_vocab: usize,
    /// `tokenizer.ggml.pre`, if it cannot be detected.
    pub pre: Option<String>,
    /// Whether a vocabulary of characters keeps its merges, as Gemma 4's does; other vocabularies get scores instead.
    pub keeps_merges: bool,
}

/// Kinds of tokens, by their numbers in files.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

/// A token of a file.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    text: String,
    kind: i32,
    score: f32,
}

/// A token that is found in a text before the model sees it.
struct AddedToken {
    text: String,
    is_special: bool,
}

impl VocabularyFiles {
    /// Returns the keys that begin with `tokenizer.`.
    ///
    /// # Errors
    /// [`TokenizerError`]: files of another form, ids beyond the embeddings, or a pre-tokenizer that has no name in GGUF files.
    pub fn metadata(&self) -> Result<Metadata, TokenizerError> {
        let json: Value = match &self.tokenizer_json {
            Some(bytes) => serde_json::from_slice(bytes)?,
            None => Value::Null,
        };
        let mut metadata = Metadata::new();
        let model = &json["model"];
        let kind = match model["type"].as_str() {
            Some(kind) => kind,
            None if model["merges"].is_array() => "BPE",
            None if model["vocab"].is_array() => "Unigram",
            None if model["vocab"].is_object() => "WordPiece",
            None => "",
        };
        let is_byte_level =
            has_part(&json["pre_tokenizer"], "ByteLevel") || has_part(&json["decoder"], "ByteLevel");
        // If both exist, the form that the reference reads.
        let sentencepiece = (self.sentencepiece.as_ref()).filter(|_| !is_byte_level && !self.keeps_merges);
        let mut merges = None;
        match (kind, sentencepiece) {
            ("WordPiece", _) => self.word_pieces(&json, &mut metadata)?,
            ("Unigram", _) => self.unigram(&json, &mut metadata)?,
            ("BPE", None) if is_byte_level => {
                let name = self.pre_name()?;
                metadata.insert("tokenizer.ggml.model", "gpt2")?;
                metadata.insert("tokenizer.ggml.pre", name)?;
                let vocab = ids_by_text(&model["vocab"])?;
                let tokens = self.with_added(self.tokens_of(vocab, |_| kind::NORMAL)?, &json)?;
                write_tokens(&tokens, false, &mut metadata)?;
                merges = Some(merge_list(model)?);
                // The key is for encoders, whose readers ask for it.
                if self.config["type_vocab_size"].is_u64() {
                    self.count_token_types(&mut metadata)?;
                }
            }
            ("BPE", None) if self.keeps_merges => {
                metadata.insert("tokenizer.ggml.model", "gemma4")?;
                let tokens = self.spelled_out(&json)?;
                write_tokens(&tokens, true, &mut metadata)?;
                merges = Some(merge_list(model)?);
            }
            ("BPE", None) => {
                metadata.insert("tokenizer.ggml.model", "llama")?;
                metadata.insert("tokenizer.ggml.pre", "default")?;
                write_tokens(&self.spelled_out(&json)?, true, &mut metadata)?;
                if !puts_space_before(&json) {
                    metadata.insert("tokenizer.ggml.add_space_prefix", false)?;
                }
            }
            (_, Some(bytes)) => self.sentencepiece_model(bytes, &mut metadata)?,
            (found, None) => {
                return Err(TokenizerError::UnsupportedPart {
                    part: "model",
                    name: if found.is_empty() { "(none)" } else { found }.to_owned(),
                });
            }
        }
        if let Some(merges) = merges {
            metadata.insert("tokenizer.ggml.merges", merges)?;
        }
        let roles = roles::Roles::of(&json, &self.tokenizer_config, &self.config);
        roles.write(self.n_vocab, &mut metadata)?;
        roles::write_templates(
            &self.tokenizer_config["chat_template"],
            self.chat_template.as_deref(),
            &mut metadata,
        )?;
        Ok(metadata)
    }

    /// Returns `tokenizer.ggml.pre` of a byte-level vocabulary.
    fn pre_name(&self) -> Result<String, TokenizerError> {
        if let Some(name) = &self.pre {
            return Ok(name.clone());
        }
        let json = self.tokenizer_json.as_deref().unwrap_or_default();
        let tokenizer = Tokenizer::from_tokenizer_json(json)?;
        pre_names::find(&tokenizer)
            .map(str::to_owned)
            .ok_or(TokenizerError::UnnamedPreTokenizer)
    }

    /// Returns a token for each row of the embeddings; rows without a token in the vocabulary get fillers.
    fn tokens_of(
        &self,
        vocab: HashMap<String, u32>,
        kind_of: impl Fn(&str) -> i32,
    ) -> Result<Vec<Token>, TokenizerError> {
        let mut tokens = fillers(self.n_vocab);
        for (text, id) in vocab {
            let kind = kind_of(&text);
            *Self::slot(&mut tokens, id)? = Token {
                text,
                kind,
                score: 0.0,
            };
        }
        Ok(tokens)
    }

    fn slot(tokens: &mut [Token], id: u32) -> Result<&mut Token, TokenizerError> {
        tokens.get_mut(id as usize).ok_or(TokenizerError::TokenIds {
            id,
            problem: "beyond the rows of the embeddings",
        })
    }

    /// Marks added tokens.
    fn with_added(&self, mut tokens: Vec<Token>, json: &Value) -> Result<Vec<Token>, TokenizerError> {
        for (id, added) in self.added(json) {
            let AddedToken { text, is_special } = added;
            let is_control = is_special || looks_special(&text);
            let (text, kind) = if is_control {
                (text, kind::CONTROL)
            } else {
                (text.replace('\u{2581}', " "), kind::USER_DEFINED)
            };
            *Self::slot(&mut tokens, id)? = Token {
                text,
                kind,
                score: 0.0,
            };
        }
        Ok(tokens)
    }

    /// Returns the added tokens of `tokenizer.json`, and further ones of `tokenizer_config.json`.
    fn added(&self, json: &Value) -> Vec<(u32, AddedToken)> {
        let read = |id: Option<u64>, token: &Value| {
            let added = AddedToken {
                text: token["content"].as_str()?.to_owned(),
                is_special: token["special"].as_bool().unwrap_or(false),
            };
            Some((u32::try_from(id?).ok()?, added))
        };
        let own = json["added_tokens"].as_array().into_iter().flatten();
        let mut added: Vec<(u32, AddedToken)> = own
            .filter_map(|token| read(token["id"].as_u64(), token))
            .collect();
        let others = self.tokenizer_config["added_tokens_decoder"].as_object();
        for (id, token) in others.into_iter().flatten() {
            if let Some((id, token)) = read(id.parse().ok(), token)
                && !added.iter().any(|(known, _)| *known == id)
            {
                added.push((id, token));
            }
        }
        added
    }

    fn word_pieces(&self, json: &Value, metadata: &mut Metadata) -> Result<(), TokenizerError> {
        let model = &json["model"];
        let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("##");
        let tokens = self.tokens_of(ids_by_text(&model["vocab"])?, |_| kind::NORMAL)?;
        let mut tokens = self.with_added(tokens, json)?;
        for token in tokens.iter_mut().filter(|token| token.kind != kind::CONTROL) {
            // Words begin with the stand-in for a space.
            token.text = match token.text.strip_prefix(prefix) {
                Some(rest) => rest.to_owned(),
                None => format!("\u{2581}{}", token.text),
            };
        }
        self.count_token_types(metadata)?;
        metadata.insert("tokenizer.ggml.model", "bert")?;
        metadata.insert("tokenizer.ggml.pre", self.pre.as_deref().unwrap_or("default"))?;
        write_tokens(&tokens, false, metadata)?;
        let normalizer = &json["normalizer"];
        for (key, name) in [("lowercase", "lowercase"), ("strip_accents", "strip_accents")] {
            if let Some(flag) = normalizer[name].as_bool() {
                metadata.insert(format!("tokenizer.ggml.normalizer.{key}"), flag)?;
            }
        }
        Ok(())
    }

    /// Counts the kinds of tokens that an encoder distinguishes.
    fn count_token_types(&self, metadata: &mut Metadata) -> Result<(), TokenizerError> {
        let count = self.config["type_vocab_size"].as_u64().unwrap_or(1);
        let count = u32::try_from(count).unwrap_or(1);
        Ok(metadata.insert("tokenizer.ggml.token_type_count", count)?)
    }

    fn unigram(&self, json: &Value, metadata: &mut Metadata) -> Result<(), TokenizerError> {
        let model = &json["model"];
        let mut tokens = fillers(self.n_vocab);
        let unknown = model["unk_id"].as_u64();
        for (id, pair) in (0..).zip(model["vocab"].as_array().into_iter().flatten()) {
            let text = pair[0].as_str().unwrap_or_default().to_owned();
            let kind = match Some(u64::from(id)) == unknown {
                true => kind::UNKNOWN,
                false if is_byte(&text) && model["byte_fallback"].as_bool() == Some(true) => kind::BYTE,
                false => kind::NORMAL,
            };
            let score = pair[1].as_f64().unwrap_or(0.0) as f32;
            *Self::slot(&mut tokens, id)? = Token { text, kind, score };
        }
        for (id, added) in self.added(json) {
            let token = Self::slot(&mut tokens, id)?;
            token.text = added.text;
            if Some(u64::from(id)) != unknown {
                token.kind = if added.is_special {
                    kind::CONTROL
                } else {
                    kind::USER_DEFINED
                };
                token.score = if token.score == FILLER_SCORE {
                    0.0
                } else {
                    token.score
                };
            }
        }
        metadata.insert("tokenizer.ggml.model", "t5")?;
        metadata.insert("tokenizer.ggml.pre", "default")?;
        write_tokens(&tokens, true, metadata)?;
        let adds_space = puts_space_before(json);
        metadata.insert("tokenizer.ggml.add_space_prefix", adds_space)?;
        self.count_token_types(metadata)?;
        metadata.insert("tokenizer.ggml.remove_extra_whitespaces", true)?;
        if let Some(charsmap) = find_part(&json["normalizer"], "Precompiled")
            .and_then(|part| part["precompiled_charsmap"].as_str())
            .and_then(decode_base64)
        {
            metadata.insert("tokenizer.ggml.precompiled_charsmap", charsmap)?;
        }
        Ok(())
    }

    /// Returns the tokens of a vocabulary of characters, with a score for each: the earlier a token is merged, the higher.
    fn spelled_out(&self, json: &Value) -> Result<Vec<Token>, TokenizerError> {
        let model = &json["model"];
        let unknown = model["unk_token"].as_str();
        let falls_back = model["byte_fallback"].as_bool() == Some(true);
        let vocab = ids_by_text(&model["vocab"])?;
        let mut tokens = self.tokens_of(vocab, |text| match text {
            text if Some(text) == unknown => kind::UNKNOWN,
            text if falls_back && is_byte(text) => kind::BYTE,
            _ => kind::NORMAL,
        })?;
        let ids: HashMap<String, usize> = (tokens.iter().enumerate())
            .map(|(id, token)| (token.text.clone(), id))
            .collect();
        let merges = merge_list(model)?;
        for (rank, merge) in merges.iter().enumerate() {
            let merged: String = merge.split(' ').collect();
            let token = ids.get(&merged).and_then(|&id| tokens.get_mut(id));
            // The first merge that makes a token counts; single characters have none.
            if let Some(token) = token.filter(|token| token.score == 0.0) {
                token.score = -1.0 - rank as f32;
            }
        }
        for (id, added) in self.added(json) {
            let token = Self::slot(&mut tokens, id)?;
            if token.kind == kind::UNKNOWN {
                continue;
            }
            let is_control = added.is_special || looks_special(&added.text);
            token.kind = if is_control {
                kind::CONTROL
            } else {
                kind::USER_DEFINED
            };
            token.text = if is_control {
                added.text
            } else {
                added.text.replace('\u{2581}', " ")
            };
        }
        Ok(tokens)
    }

    fn sentencepiece_model(&self, bytes: &[u8], metadata: &mut Metadata) -> Result<(), TokenizerError> {
        let model = sentencepiece::parse(bytes)?;
        let mut tokens = fillers(self.n_vocab);
        for (id, piece) in (0..).zip(model.pieces) {
            *Self::slot(&mut tokens, id)? = Token {
                text: piece.text,
                kind: piece.kind,
                score: piece.score,
            };
        }
        // Ids beyond the embeddings belong to no row, and are ignored.
        for (text, id) in self.added_tokens.as_object().into_iter().flatten() {
            let slot = id
                .as_u64()
                .and_then(|id| tokens.get_mut(usize::try_from(id).ok()?));
            if let Some(token) = slot {
                *token = Token {
                    text: text.clone(),
                    kind: kind::USER_DEFINED,
                    score: ADDED_SCORE,
                };
            }
        }
        for (id, added) in self.added(&Value::Null) {
            let Some(token) = tokens.get_mut(id as usize) else {
                continue;
            };
            let is_control = added.is_special || looks_special(&added.text);
            *token = Token {
                text: if is_control {
                    added.text
                } else {
                    added.text.replace('\u{2581}', " ")
                },
                kind: if is_control {
                    kind::CONTROL
                } else {
                    kind::USER_DEFINED
                },
                score: ADDED_SCORE,
            };
        }
        let name = if model.is_unigram { "t5" } else { "llama" };
        metadata.insert("tokenizer.ggml.model", name)?;
        metadata.insert("tokenizer.ggml.pre", "default")?;
        write_tokens(&tokens, true, metadata)?;
        let asked = self.tokenizer_config["add_prefix_space"].as_bool();
        if let Some(adds) = asked.or((!model.adds_space).then_some(false)) {
            metadata.insert("tokenizer.ggml.add_space_prefix", adds)?;
        }
        if model.is_unigram {
            metadata.insert("tokenizer.ggml.remove_extra_whitespaces", model.removes_spaces)?;
            if !model.charsmap.is_empty() {
                metadata.insert("tokenizer.ggml.precompiled_charsmap", model.charsmap)?;
            }
        }
        Ok(())
    }
}

/// The score of rows without a token, and of added tokens, as in converted SentencePiece vocabularies.
const FILLER_SCORE: f32 = -10_000.0;
const ADDED_SCORE: f32 = -1000.0;

fn fillers(n_vocab: usize) -> Vec<Token> {
    (0..n_vocab)
        .map(|id| Token {
            text: format!("[PAD{id}]"),
            kind: kind::UNUSED,
            score: FILLER_SCORE,
        })
        .collect()
}

fn write_tokens(tokens: &[Token], has_scores: bool, metadata: &mut Metadata) -> Result<(), TokenizerError> {
    let texts: StringArray = tokens.iter().map(|token| token.text.as_str()).collect();
    metadata.insert("tokenizer.ggml.tokens", texts)?;
    if has_scores {
        let scores: Vec<f32> = tokens.iter().map(|token| token.score).collect();
        metadata.insert("tokenizer.ggml.scores", scores)?;
    }
    let kinds: Vec<i32> = tokens.iter().map(|token| token.kind).collect();
    Ok(metadata.insert("tokenizer.ggml.token_type", kinds)?)
}

fn ids_by_text(vocab: &Value) -> Result<HashMap<String, u32>, TokenizerError> {
    Ok(serde_json::from_value(vocab.clone())?)
}

/// Returns the merges, both parts in one text. A space inside a part is spelled as GPT-2 spells it.
fn merge_list(model: &Value) -> Result<StringArray, TokenizerError> {
    let mut merges = StringArray::new();
    for (index, merge) in model["merges"].as_array().into_iter().flatten().enumerate() {
        match (merge.as_str(), merge[0].as_str(), merge[1].as_str()) {
            (Some(joined), ..) => merges.push(joined),
            (None, Some(left), Some(right)) => {
                let spelled = |part: &str| part.replace(' ', "\u{120}");
                merges.push(&format!("{} {}", spelled(left), spelled(right)));
            }
            _ => {
                return Err(TokenizerError::MalformedMerge {
                    index,
                    merge: merge.to_string(),
                });
            }
        }
    }
    Ok(merges)
}

/// Returns whether a token is the name of a byte.
fn is_byte(text: &str) -> bool {
    byte_level::byte_of_token(text).is_some()
}

/// Returns whether a token that is not marked as special has the form of a special one.
fn looks_special(text: &str) -> bool {
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || (text.starts_with("<|") && text.ends_with("|>"))
        || (text.starts_with("<\u{ff5c}") && text.ends_with("\u{ff5c}>"))
        || (text.starts_with("<unused") && text.ends_with('>'))
}

/// Finds the part of this type in a pipeline, or in its only part.
fn find_part<'v>(part: &'v Value, name: &str) -> Option<&'v Value> {
    if part["type"] == name {
        return Some(part);
    }
    ["pretokenizers", "normalizers", "decoders", "processors"]
        .iter()
        .filter_map(|key| part[*key].as_array())
        .flatten()
        .find_map(|part| find_part(part, name))
}

fn has_part(part: &Value, name: &str) -> bool {
    find_part(part, name).is_some()
}

/// Returns whether a text gets a space before it.
fn puts_space_before(json: &Value) -> bool {
    if has_part(&json["normalizer"], "Prepend") {
        return true;
    }
    match find_part(&json["pre_tokenizer"], "Metaspace") {
        Some(part) => match part["prepend_scheme"].as_str() {
            Some(scheme) => scheme != "never",
            None => part["add_prefix_space"].as_bool().unwrap_or(true),
        },
        None => false,
    }
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;

    base64::engine::general_purpose::STANDARD.decode(text).ok()
}
