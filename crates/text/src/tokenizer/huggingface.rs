//! Reads a tokenizer from a Hugging Face `tokenizer.json`.
//!
//! The file is a program of parts, and each must be known: an unknown part is refused by name rather than ignored.
//! Invariant: as for GGUF, the returned tokenizer has no id outside its vocabulary.
//!
//! Source: Hugging Face `tokenizers`, for the form of the file and the meaning of each part.

mod parts;

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::TokenizerError;

use super::{
    Model, Tokenizer,
    added::{AddedToken, AddedTokens},
    bpe::{Alphabet, Bpe, Merges},
    byte_level,
    key_map::KeyMap,
    limits,
    split::{METASPACE, Step},
    unigram::Unigram,
    vocab::{TokenKind, Vocab},
    wordpiece::WordPiece,
};

use parts::Spelling;

/// The file.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Option<parts::NormalizerPart>,
    #[serde(default)]
    pre_tokenizer: Option<parts::PreTokenizerPart>,
    #[serde(default)]
    post_processor: Option<parts::PostProcessorPart>,
    #[serde(default)]
    decoder: Option<parts::DecoderPart>,
    /// Old files do not name the model's type, so it is read in a second step.
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent flags of the file format"
)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct ModelType {
    #[serde(rename = "type")]
    name: Option<String>,
    merges: Option<serde::de::IgnoredAny>,
    max_input_chars_per_word: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct BpeModel {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// A merge in the old and in the new way of writing.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair(String, String),
}

#[derive(Deserialize)]
struct WordPieceModel {
    vocab: HashMap<String, u32>,
    unk_token: String,
    #[serde(default = "default_prefix")]
    continuing_subword_prefix: String,
    #[serde(default = "default_max_chars")]
    max_input_chars_per_word: usize,
}

fn default_prefix() -> String {
    "##".to_owned()
}

fn default_max_chars() -> usize {
    WordPiece::MAX_WORD_CHARS
}

#[derive(Deserialize)]
struct UnigramModel {
    vocab: Vec<(String, f64)>,
    unk_id: Option<usize>,
    #[serde(default)]
    byte_fallback: bool,
}

/// The tokens of the model and of the list of added ones, by id.
struct Tokens {
    texts: Vec<Option<String>>,
    kinds: Vec<TokenKind>,
    /// Whether each of them is in the model's own vocabulary. The others are matched in text, but merges never produce them.
    are_of_model: Vec<bool>,
}

/// Builds the tokenizer that a `tokenizer.json` describes.
pub(crate) fn read(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let file: File<'_> = serde_json::from_slice(json)?;
    let mut normalizers = Vec::new();
    if let Some(part) = file.normalizer {
        part.compile(&mut normalizers)?;
    }
    let mut splitter = parts::Splitter::default();
    if let Some(part) = file.pre_tokenizer {
        part.compile(&mut splitter)?;
    }
    let parts::Splitter {
        mut steps,
        is_byte_level,
    } = splitter;
    let around = file
        .post_processor
        .map(parts::PostProcessorPart::compile)
        .transpose()?;
    let spelling = match file.decoder {
        Some(part) => part.compile()?,
        None => Spelling::default(),
    };

    let model_type: ModelType = serde_json::from_str(file.model.get())?;
    let name = match (
        model_type.name.as_deref(),
        model_type.merges,
        model_type.max_input_chars_per_word,
    ) {
        (Some(name), ..) => name,
        (None, Some(_), _) => "BPE",
        (None, None, Some(_)) => "WordPiece",
        (None, None, None) => "Unigram",
    };
    let (model, mut tokens, unknown) = match name {
        "BPE" => read_bpe(
            serde_json::from_str(file.model.get())?,
            &file.added_tokens,
            is_byte_level,
            &mut steps,
        )?,
        "WordPiece" => read_wordpiece(serde_json::from_str(file.model.get())?, &file.added_tokens)?,
        "Unigram" => read_unigram(serde_json::from_str(file.model.get())?, &file.added_tokens)?,
        _ => {
            return Err(TokenizerError::UnsupportedPart {
                part: "model",
                name: name.to_owned(),
            });
        }
    };
    if let Some(unknown) = unknown
        && tokens.kinds[unknown as usize] == TokenKind::Normal
    {
        tokens.kinds[unknown as usize] = TokenKind::Unknown;
    }

    let mut vocab = Vocab::new((0..).zip(&tokens.texts).map(|(id, text)| {
        let kind = tokens.kinds[id];
        (spelling.decode(text.as_deref().unwrap_or(""), kind), kind)
    }))?;
    vocab.strips_leading_space = spelling.strips_leading_space;
    vocab.special.unknown = unknown;
    let (prefix, suffix) = match around {
        Some(around) => around.resolve(&tokens.texts)?,
        None => (Vec::new(), Vec::new()),
    };
    find_roles(&mut vocab, &prefix, &suffix, &file.added_tokens);
    vocab.find_end_of_generation();

    let (normalized, raw): (Vec<Added>, Vec<Added>) =
        file.added_tokens.into_iter().partition(|token| token.normalized);
    let mut tokenizer = Tokenizer {
        vocab,
        added: AddedTokens::new(raw.into_iter().map(Added::into_token).collect())?,
        added_normalized: AddedTokens::new(Vec::new())?,
        normalizers,
        steps,
        model,
        prefix,
        suffix,
    };
    limits::check(&tokenizer)?;
    let mut n_bytes = 0;
    let mut tokens = Vec::with_capacity(normalized.len());
    for added in normalized {
        let mut token = added.into_token();
        token.text = tokenizer.normalize(&token.text).into_owned();
        n_bytes += token.text.len();
        limits::check_added_tokens(n_bytes)?;
        tokens.push(token);
    }
    tokenizer.added_normalized = AddedTokens::new(tokens)?;
    Ok(tokenizer)
}

impl Added {
    fn into_token(self) -> AddedToken {
        AddedToken {
            id: self.id,
            text: self.content,
            is_special: self.special,
            strips_left: self.lstrip,
            strips_right: self.rstrip,
            is_single_word: self.single_word,
        }
    }
}

impl Tokens {
    /// Puts tokens and added tokens in order of id. Ids may have gaps, but not many more than there are tokens.
    fn new(
        vocab: impl Iterator<Item = (String, u32)>,
        n_vocab: usize,
        added: &[Added],
    ) -> Result<Self, TokenizerError> {
        let limit = 2 * (n_vocab + added.len()) + 1024;
        let mut tokens = Self {
            texts: Vec::with_capacity(n_vocab),
            kinds: Vec::with_capacity(n_vocab),
            are_of_model: Vec::new(),
        };
        for (text, id) in vocab {
            let slot = tokens.slot(id, limit)?;
            if tokens.texts[slot].replace(text).is_some() {
                return Err(TokenizerError::TokenIds {
                    id,
                    problem: "given twice",
                });
            }
        }
        tokens.are_of_model = tokens.texts.iter().map(Option::is_some).collect();
        for token in added {
            let slot = tokens.slot(token.id, limit)?;
            match &tokens.texts[slot] {
                Some(text) if *text != token.content => {
                    return Err(TokenizerError::TokenIds {
                        id: token.id,
                        problem: "given twice, by the model and as an added token",
                    });
                }
                _ => tokens.texts[slot] = Some(token.content.clone()),
            }
            tokens.kinds[slot] = if token.special {
                TokenKind::Control
            } else {
                TokenKind::UserDefined
            };
        }
        for (text, kind) in tokens.texts.iter().zip(&mut tokens.kinds) {
            if text.is_none() {
                *kind = TokenKind::Unused;
            }
        }
        Ok(tokens)
    }

    fn slot(&mut self, id: u32, limit: usize) -> Result<usize, TokenizerError> {
        let slot = id as usize;
        if slot >= limit {
            return Err(TokenizerError::TokenIds {
                id,
                problem: "far beyond the number of tokens",
            });
        }
        if slot >= self.texts.len() {
            self.texts.resize(slot + 1, None);
            self.kinds.resize(slot + 1, TokenKind::Normal);
        }
        Ok(slot)
    }

    /// Marks byte tokens and returns them by byte.
    fn byte_tokens(&mut self) -> Box<[Option<u32>; 256]> {
        let mut bytes = Box::new([None; 256]);
        for (id, (text, kind)) in (0..).zip(self.texts.iter().zip(&mut self.kinds)) {
            if *kind == TokenKind::Normal
                && let Some(byte) = text.as_deref().and_then(byte_level::byte_of_token)
            {
                *kind = TokenKind::Byte;
                bytes[byte as usize] = Some(id);
            }
        }
        bytes
    }

    /// Ids and texts of the tokens that may be made from text.
    fn text_tokens(&self) -> impl Iterator<Item = (u32, &str)> {
        let of_model = (0..)
            .zip(&self.are_of_model)
            .filter(|(_, is_of_model)| **is_of_model);
        of_model.filter_map(|(id, _)| match self.kinds[id as usize] {
            TokenKind::Normal | TokenKind::UserDefined => Some((id, self.texts[id as usize].as_deref()?)),
            _ => None,
        })
    }
}

type Read = (Model, Tokens, Option<u32>);

fn read_bpe(
    file: BpeModel,
    added: &[Added],
    is_byte_level: bool,
    steps: &mut Vec<Step>,
) -> Result<Read, TokenizerError> {
    let unsupported = |name: &str| {
        Err(TokenizerError::UnsupportedPart {
            part: "BPE setting",
            name: name.to_owned(),
        })
    };
    if file.dropout.is_some_and(|dropout| dropout > 0.0) {
        return unsupported("dropout");
    }
    if file
        .continuing_subword_prefix
        .is_some_and(|prefix| !prefix.is_empty())
    {
        return unsupported("continuing_subword_prefix");
    }
    if file.end_of_word_suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return unsupported("end_of_word_suffix");
    }
    let unknown = match &file.unk_token {
        Some(text) => Some(find_token(&file.vocab, text)?),
        None => None,
    };
    let mut merges = Merges::with_capacity(file.merges.len());
    let ids_by_text = &file.vocab;
    for (index, merge) in file.merges.iter().enumerate() {
        let (left, right) = match merge {
            Merge::Pair(left, right) => (left.as_str(), right.as_str()),
            Merge::Joined(joined) => joined
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
                .ok_or_else(|| TokenizerError::MalformedMerge {
                    index,
                    merge: joined.clone(),
                })?,
        };
        let id = |token: &str| {
            ids_by_text
                .get(token)
                .copied()
                .ok_or_else(|| TokenizerError::UnknownMergeToken {
                    index,
                    token: token.to_owned(),
                })
        };
        merges.insert(
            id(left)?,
            id(right)?,
            index as u32,
            id(&format!("{left}{right}"))?,
        );
    }
    let n_vocab = file.vocab.len();
    let mut tokens = Tokens::new(file.vocab.into_iter(), n_vocab, added)?;
    merges.retain(|merged| !tokens.kinds[merged as usize].is_special());
    let mut keys = KeyMap::with_capacity(tokens.texts.len());
    let alphabet = if is_byte_level {
        let mut bytes = Box::new([None; 256]);
        for (id, text) in tokens.text_tokens() {
            if let Some(key) = byte_level::decode(text)
                && !key.is_empty()
            {
                keys.insert(&key, id);
                if let &[byte] = key.as_slice() {
                    bytes[byte as usize].get_or_insert(id);
                }
            }
        }
        Alphabet::Bytes(bytes)
    } else {
        let bytes = file.byte_fallback.then(|| tokens.byte_tokens());
        for (id, text) in tokens.text_tokens() {
            keys.insert(text.as_bytes(), id);
        }
        if !file.ignore_merges && steps.is_empty() && can_split_before_metaspace(&tokens) {
            steps.push(Step::BeforeMetaspace);
        }
        Alphabet::Characters {
            bytes,
            unknown,
            fuses_unknown: file.fuse_unk,
        }
    };
    let bpe = Bpe::new(keys, merges, alphabet, file.ignore_merges, tokens.texts.len());
    Ok((Model::Bpe(bpe), tokens, unknown))
}

/// Returns whether no token has a `▁` after another character, so that no merge crosses such a place.
fn can_split_before_metaspace(tokens: &Tokens) -> bool {
    tokens
        .text_tokens()
        .all(|(_, text)| !text.trim_start_matches(METASPACE).contains(METASPACE))
}

fn find_token(vocab: &HashMap<String, u32>, text: &str) -> Result<u32, TokenizerError> {
    vocab
        .get(text)
        .copied()
        .ok_or_else(|| TokenizerError::UnknownToken {
            text: text.to_owned(),
        })
}

fn read_wordpiece(file: WordPieceModel, added: &[Added]) -> Result<Read, TokenizerError> {
    let unknown = find_token(&file.vocab, &file.unk_token)?;
    let n_vocab = file.vocab.len();
    let tokens = Tokens::new(file.vocab.into_iter(), n_vocab, added)?;
    let mut starts = KeyMap::with_capacity(n_vocab);
    let mut continuations = KeyMap::with_capacity(n_vocab);
    for (id, text) in tokens.text_tokens() {
        // A word may be written like a continuing piece.
        starts.insert(text.as_bytes(), id);
        if let Some(rest) = text.strip_prefix(&file.continuing_subword_prefix)
            && !rest.is_empty()
        {
            continuations.insert(rest.as_bytes(), id);
        }
    }
    let model = WordPiece {
        starts,
        continuations,
        unknown: Some(unknown),
        max_word_chars: file.max_input_chars_per_word,
    };
    Ok((Model::WordPiece(model), tokens, Some(unknown)))
}

fn read_unigram(file: UnigramModel, added: &[Added]) -> Result<Read, TokenizerError> {
    let n_vocab = file.vocab.len();
    let unknown = match file.unk_id {
        Some(id) if id < n_vocab => Some(id as u32),
        Some(id) => {
            return Err(TokenizerError::TokenIdOutOfRange {
                key: "unk_id",
                id: u32::try_from(id).unwrap_or(u32::MAX),
                n_vocab,
            });
        }
        None => None,
    };
    let mut scores: Vec<f64> = file.vocab.iter().map(|&(_, score)| score).collect();
    if let Some((id, &score)) = (0..).zip(&scores).find(|(_, score)| !score.is_finite()) {
        return Err(TokenizerError::Score { id, score });
    }
    let min_score = scores.iter().copied().fold(f64::INFINITY, f64::min);
    let mut tokens = Tokens::new(
        (0..).zip(file.vocab).map(|(id, (text, _))| (text, id)),
        n_vocab,
        added,
    )?;
    scores.resize(tokens.texts.len(), 0.0);
    let bytes = file.byte_fallback.then(|| tokens.byte_tokens());
    // Added tokens outside the model's list are found before the model sees the text.
    let texts = tokens
        .text_tokens()
        .filter(|&(id, _)| (id as usize) < n_vocab && Some(id) != unknown)
        .map(|(id, text)| (text.as_bytes(), id));
    let model = Unigram::new(
        texts,
        scores,
        if min_score.is_finite() { min_score } else { 0.0 },
        unknown,
        bytes,
    )?;
    Ok((Model::Unigram(model), tokens, unknown))
}

/// Finds tokens with a role. The file does not name them; they are those around a text, else known by their text.
fn find_roles(vocab: &mut Vocab, prefix: &[u32], suffix: &[u32], added: &[Added]) {
    let named = |names: &[&str]| {
        names.iter().find_map(|name| {
            added
                .iter()
                .find(|token| token.special && token.content == *name)
                .map(|token| token.id)
        })
    };
    let special = &mut vocab.special;
    special.bos = prefix.first().copied().or_else(|| {
        named(&[
            "<|begin_of_text|>",
            "<|bos|>",
            "<s>",
            "<bos>",
            "[CLS]",
            "<|endoftext|>",
        ])
    });
    special.eos = named(&[
        "<|end_of_text|>",
        "<|eos|>",
        "</s>",
        "<eos>",
        "[SEP]",
        "<|endoftext|>",
    ])
    .or_else(|| suffix.last().copied());
    special.separator = named(&["[SEP]", "</s>"]);
    special.padding = named(&["<pad>", "[PAD]", "<|pad|>"]);
}
