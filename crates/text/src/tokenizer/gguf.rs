//! Reads a tokenizer from GGUF metadata.
//!
//! Untrusted arrays and ids are checked against each other here. Invariant: the returned tokenizer has no id outside its vocabulary.
//!
//! Source: llama.cpp `src/llama-vocab.cpp`, for keys, defaults and the meaning of each model.

use std::collections::HashMap;

use tokenmill_gguf::{Metadata, StringArray};

use crate::TokenizerError;

use super::{
    Model, Tokenizer,
    added::{AddedToken, AddedTokens},
    bpe::{Alphabet, Bpe, Merges},
    byte_level,
    charsmap::{Charsmap, Matching},
    key_map::KeyMap,
    limits,
    normalize::{BertNormalizer, Normalizer},
    pre_tokenizers::{self, Spelling},
    split::{METASPACE, Step},
    spm::Spm,
    unigram::Unigram,
    vocab::{END_MARKS, InfillIds, TokenKind, Vocab},
    wordpiece::{WordPiece, bert_steps, wordpiece_piece},
};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const SEPARATOR: &str = "tokenizer.ggml.seperator_token_id";
const PADDING: &str = "tokenizer.ggml.padding_token_id";
/// Keys of the tokens for filling in the middle, the newer ones first. Source: llama.cpp `src/llama-arch.cpp`.
const INFILL_PREFIX: [&str; 2] = [
    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.prefix_token_id",
];
const INFILL_SUFFIX: [&str; 2] = [
    "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.suffix_token_id",
];
const INFILL_MIDDLE: [&str; 2] = [
    "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.middle_token_id",
];
const INFILL_REPOSITORY: [&str; 1] = ["tokenizer.ggml.fim_rep_token_id"];
const INFILL_FILE: [&str; 1] = ["tokenizer.ggml.fim_sep_token_id"];
const CLASS: &str = "tokenizer.ggml.cls_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const REMOVE_EXTRA_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

/// The vocabulary in the form of the file.
struct Source<'m> {
    metadata: &'m Metadata,
    tokens: &'m StringArray,
    kinds: Vec<TokenKind>,
    /// Text to id, of tokens that have text.
    by_text: HashMap<&'m str, u32, foldhash::fast::RandomState>,
}

/// Special tokens of a model if the file does not name them.
#[derive(Default)]
struct Defaults {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    separator: Option<u32>,
    padding: Option<u32>,
    adds_bos: bool,
    adds_eos: bool,
}

/// Holds the parts that the reader of one model makes.
struct Parts {
    model: Model,
    pieces: Vec<Vec<u8>>,
    normalizers: Vec<Normalizer>,
    steps: Vec<Step>,
    strips_leading_space: bool,
    defaults: Defaults,
}

/// Builds the tokenizer that `metadata` describes.
pub(crate) fn read(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
    let model = metadata.str(MODEL)?;
    let pre = metadata.opt_str(PRE)?.unwrap_or("");
    let source = Source::new(metadata)?;
    let parts = match model {
        "gpt2" => read_bpe(&source, pre)?,
        "gemma4" | "whitespace" => read_bpe(&source, model)?,
        "llama" => read_spm(&source)?,
        "bert" => read_wordpiece(&source)?,
        "t5" => read_unigram(&source)?,
        _ => {
            return Err(TokenizerError::UnsupportedModel {
                model: model.to_owned(),
            });
        }
    };
    finish(&source, parts, model == "bert", pre)
}

impl<'m> Source<'m> {
    fn new(metadata: &'m Metadata) -> Result<Self, TokenizerError> {
        let tokens = metadata.string_array(TOKENS)?;
        let mut kinds: Vec<TokenKind> = match metadata.opt_i32_array(KINDS)? {
            Some(numbers) => {
                check_len(KINDS, numbers.len(), tokens.len())?;
                numbers
                    .iter()
                    .map(|&number| TokenKind::from_gguf(number))
                    .collect()
            }
            None => vec![TokenKind::Normal; tokens.len()],
        };
        let mut by_text =
            HashMap::with_capacity_and_hasher(tokens.len(), foldhash::fast::RandomState::default());
        for (id, text) in (0..).zip(tokens.iter()) {
            if text.is_empty() {
                continue;
            }
            if let Some(first) = by_text.insert(text, id) {
                return Err(TokenizerError::DuplicateToken {
                    text: text.to_owned(),
                    first,
                    second: id,
                });
            }
        }
        let mut ends: Vec<(u32, bool)> = END_MARKS
            .iter()
            .filter_map(|mark| Some((*by_text.get(mark)?, mark.starts_with("<|"))))
            .collect();
        for key in [EOS, EOT, EOM] {
            ends.extend(id_of(metadata, key, tokens.len())?.map(|id| (id, false)));
        }
        for (id, is_no_text) in ends {
            // Converters mark some end tokens as user-defined, so text would be matched against them, and a message with `<|im_end|>`
            // in it would end there. Others, such as Aquila's `<|endoftext|>`, are marked as normal, and no merge makes them.
            // llama.cpp turns both into control tokens too. `</s>` may be HTML and stays normal.
            match kinds.get_mut(id as usize) {
                Some(kind @ TokenKind::UserDefined) => *kind = TokenKind::Control,
                Some(kind @ (TokenKind::Normal | TokenKind::Unused)) if is_no_text => {
                    *kind = TokenKind::Control;
                }
                _ => {}
            }
        }
        Ok(Self {
            metadata,
            tokens,
            kinds,
            by_text,
        })
    }

    /// Lists ids, texts and kinds of all tokens.
    fn iter(&self) -> impl Iterator<Item = (u32, &'m str, TokenKind)> {
        (0..)
            .zip(self.tokens.iter())
            .zip(&self.kinds)
            .map(|((id, text), &kind)| (id, text, kind))
    }

    /// Returns the tokens of single bytes, and the text of each such token.
    fn byte_tokens(&self) -> Result<Box<[Option<u32>; 256]>, TokenizerError> {
        let mut bytes = Box::new([None; 256]);
        for (id, text, kind) in self.iter() {
            if kind == TokenKind::Byte {
                bytes[byte_of(id, text)? as usize] = Some(id);
            }
        }
        Ok(bytes)
    }

    /// Returns the keys of the tokens that may be made from text.
    fn text_keys(&self) -> KeyMap {
        let mut keys = KeyMap::with_capacity(self.tokens.len());
        for (id, text, kind) in self.iter() {
            if is_text(kind) && !text.is_empty() {
                keys.insert(text.as_bytes(), id);
            }
        }
        keys
    }

    /// Returns each token's decoded text, with `▁` as a space and byte tokens as bytes.
    fn metaspace_pieces(&self) -> Result<Vec<Vec<u8>>, TokenizerError> {
        self.iter()
            .map(|(id, text, kind)| {
                Ok(match kind {
                    TokenKind::Byte => vec![byte_of(id, text)?],
                    TokenKind::Normal | TokenKind::Unused => text.replace(METASPACE, " ").into_bytes(),
                    _ => text.as_bytes().to_vec(),
                })
            })
            .collect()
    }

    fn scores(&self) -> Result<Vec<f32>, TokenizerError> {
        let scores = match self.metadata.get(SCORES) {
            None => vec![0.0; self.tokens.len()],
            Some(tokenmill_gguf::Value::Array(tokenmill_gguf::Array::I32(scores))) => {
                scores.iter().map(|&score| score as f32).collect()
            }
            Some(_) => self.metadata.f32_array(SCORES)?.to_vec(),
        };
        check_len(SCORES, scores.len(), self.tokens.len())?;
        match (0..).zip(&scores).find(|(_, score)| !score.is_finite()) {
            Some((id, &score)) => Err(TokenizerError::Score {
                id,
                score: f64::from(score),
            }),
            None => Ok(scores),
        }
    }

    /// Returns the id that a key names, or the default if the vocabulary has it.
    fn special(&self, key: &'static str, default: Option<u32>) -> Result<Option<u32>, TokenizerError> {
        let n_vocab = self.tokens.len();
        let named = id_of(self.metadata, key, n_vocab)?;
        Ok(named.or_else(|| default.filter(|&id| (id as usize) < n_vocab)))
    }
}

/// Returns the id that a key names. Writers use an id outside the vocabulary, such as -1, for no token; llama.cpp ignores those, too.
fn id_of(metadata: &Metadata, key: &'static str, n_vocab: usize) -> Result<Option<u32>, TokenizerError> {
    use tokenmill_gguf::Value;
    if let Some(
        Value::I8(-128..=-1)
        | Value::I16(i16::MIN..=-1)
        | Value::I32(i32::MIN..=-1)
        | Value::I64(i64::MIN..=-1),
    ) = metadata.get(key)
    {
        return Ok(None);
    }
    Ok(metadata.opt_u32(key)?.filter(|&id| (id as usize) < n_vocab))
}

/// Reads the tokens for filling in the middle; ids outside the vocabulary are ignored.
fn infill_ids(source: &Source<'_>) -> InfillIds {
    let find = |keys: &[&'static str]| {
        keys.iter()
            .find_map(|key| id_of(source.metadata, key, source.tokens.len()).ok().flatten())
    };
    InfillIds {
        prefix: find(&INFILL_PREFIX),
        suffix: find(&INFILL_SUFFIX),
        middle: find(&INFILL_MIDDLE),
        repository: find(&INFILL_REPOSITORY),
        file: find(&INFILL_FILE),
    }
}

fn check_len(key: &'static str, found: usize, expected: usize) -> Result<(), TokenizerError> {
    if found == expected {
        Ok(())
    } else {
        Err(TokenizerError::Length { key, expected, found })
    }
}

fn byte_of(id: u32, text: &str) -> Result<u8, TokenizerError> {
    byte_level::byte_of_token(text).ok_or_else(|| TokenizerError::ByteToken {
        id,
        text: text.to_owned(),
    })
}

/// Returns whether tokens of this kind may be made from text.
fn is_text(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Normal | TokenKind::UserDefined)
}

fn read_bpe(source: &Source<'_>, pre: &str) -> Result<Parts, TokenizerError> {
    let pre = pre_tokenizers::find(pre)?;
    let n_vocab = source.tokens.len();
    let mut steps = pre.steps;
    let mut normalizers = Vec::new();
    let (keys, pieces, alphabet) = if pre.spelling == Spelling::Bytes {
        let mut keys = KeyMap::with_capacity(n_vocab);
        let mut bytes = Box::new([None; 256]);
        let mut pieces = Vec::with_capacity(n_vocab);
        for (id, text, kind) in source.iter() {
            let decoded = byte_level::decode(text).filter(|_| kind != TokenKind::Byte);
            if is_text(kind)
                && let Some(key) = &decoded
                && !key.is_empty()
            {
                keys.insert(key, id);
                if let &[byte] = key.as_slice() {
                    bytes[byte as usize].get_or_insert(id);
                }
            }
            pieces.push(match (kind, decoded) {
                (TokenKind::Byte, _) => vec![byte_of(id, text)?],
                (TokenKind::Normal | TokenKind::Unused, Some(decoded)) => decoded,
                _ => text.as_bytes().to_vec(),
            });
        }
        (keys, pieces, Alphabet::Bytes(bytes))
    } else {
        let has_metaspace = pre.spelling == Spelling::Metaspace;
        if has_metaspace {
            normalizers.push(Normalizer::Replace {
                from: " ".into(),
                to: METASPACE.into(),
            });
            if can_split_before_metaspace(source) {
                steps.push(Step::BeforeMetaspace);
            }
        } else if source.metadata.opt_bool(LOWERCASE)?.unwrap_or(false) {
            normalizers.push(Normalizer::Lowercase);
        }
        let alphabet = Alphabet::Characters {
            bytes: Some(source.byte_tokens()?),
            unknown: source.special(UNKNOWN, None)?,
            fuses_unknown: true,
        };
        (source.text_keys(), source.metaspace_pieces()?, alphabet)
    };
    if pre.is_nfc {
        normalizers.insert(0, Normalizer::Nfc);
    }
    let merges = read_merges(source)?;
    Ok(Parts {
        model: Model::Bpe(Bpe::new(keys, merges, alphabet, pre.ignores_merges, n_vocab)),
        pieces,
        normalizers,
        steps,
        strips_leading_space: false,
        defaults: Defaults {
            adds_bos: pre.adds_bos,
            ..Defaults::default()
        },
    })
}

fn read_merges(source: &Source<'_>) -> Result<Merges, TokenizerError> {
    let list = source.metadata.string_array(MERGES)?;
    let mut merges = Merges::with_capacity(list.len());
    let mut joined = String::new();
    for (index, merge) in list.iter().enumerate() {
        // The first character may itself be a space.
        let first_len = merge.chars().next().map_or(0, char::len_utf8);
        let (left, right) = merge[first_len..]
            .find(' ')
            .map(|at| (&merge[..first_len + at], &merge[first_len + at + 1..]))
            .filter(|(_, right)| !right.is_empty())
            .ok_or_else(|| TokenizerError::MalformedMerge {
                index,
                merge: merge.to_owned(),
            })?;
        let id = |token: &str| source.by_text.get(token).copied();
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        // A merge whose result is not a token is ignored.
        let (Some(merged), Some(left), Some(right)) = (id(&joined), id(left), id(right)) else {
            continue;
        };
        if !source.kinds[merged as usize].is_special() {
            merges.insert(left, right, index as u32, merged);
        }
    }
    Ok(merges)
}

/// Returns whether no token has a `▁` after another character, so that no merge crosses such a place.
fn can_split_before_metaspace(source: &Source<'_>) -> bool {
    source
        .iter()
        .filter(|&(_, _, kind)| is_text(kind))
        .all(|(_, text, _)| !text.trim_start_matches(METASPACE).contains(METASPACE))
}

fn read_spm(source: &Source<'_>) -> Result<Parts, TokenizerError> {
    let mut normalizers = Vec::new();
    let adds_space = source.metadata.opt_bool(ADD_SPACE_PREFIX)?.unwrap_or(true);
    if adds_space {
        normalizers.push(Normalizer::Prepend(METASPACE.into()));
    }
    normalizers.push(Normalizer::Replace {
        from: " ".into(),
        to: METASPACE.into(),
    });
    let unknown = source.special(UNKNOWN, Some(0))?;
    let model = Spm::new(
        source.text_keys(),
        &source.scores()?,
        source.byte_tokens()?,
        unknown,
    );
    Ok(Parts {
        model: Model::Spm(model),
        pieces: source.metaspace_pieces()?,
        normalizers,
        steps: if can_split_before_metaspace(source) {
            vec![Step::BeforeMetaspace]
        } else {
            Vec::new()
        },
        strips_leading_space: adds_space,
        defaults: Defaults {
            bos: Some(1),
            eos: Some(2),
            unknown,
            adds_bos: true,
            ..Defaults::default()
        },
    })
}

fn read_wordpiece(source: &Source<'_>) -> Result<Parts, TokenizerError> {
    let n_vocab = source.tokens.len();
    let mut starts = KeyMap::with_capacity(n_vocab);
    let mut continuations = KeyMap::with_capacity(n_vocab);
    let mut pieces = Vec::with_capacity(n_vocab);
    for (id, text, kind) in source.iter() {
        if !is_text(kind) {
            pieces.push(format!(" {text}").into_bytes());
        } else if let Some(word) = text.strip_prefix(METASPACE) {
            starts.insert(word.as_bytes(), id);
            pieces.push(wordpiece_piece(word));
        } else {
            continuations.insert(text.as_bytes(), id);
            pieces.push(text.as_bytes().to_vec());
        }
    }
    let lowercases = source.metadata.opt_bool(LOWERCASE)?.unwrap_or(true);
    let strips_accents = source.metadata.opt_bool(STRIP_ACCENTS)?.unwrap_or(lowercases);
    let unknown = source.special(UNKNOWN, Some(100))?;
    Ok(Parts {
        model: Model::WordPiece(WordPiece {
            starts,
            continuations,
            unknown,
            max_word_chars: WordPiece::MAX_WORD_CHARS,
        }),
        pieces,
        normalizers: vec![Normalizer::Bert(BertNormalizer {
            cleans: true,
            splits_chinese: true,
            strips_accents,
            lowercases,
        })],
        steps: bert_steps()?,
        strips_leading_space: true,
        defaults: Defaults {
            bos: Some(101),
            unknown,
            separator: Some(102),
            padding: Some(0),
            ..Defaults::default()
        },
    })
}

fn read_unigram(source: &Source<'_>) -> Result<Parts, TokenizerError> {
    let mut normalizers = Vec::new();
    if let Some(blob) = source.metadata.opt_u8_array(CHARSMAP)?
        && !blob.is_empty()
    {
        normalizers.push(Normalizer::Charsmap(Charsmap::new(&blob, Matching::Longest)?));
    }
    let prepends = source.metadata.opt_bool(ADD_SPACE_PREFIX)?.unwrap_or(false);
    normalizers.push(Normalizer::SentencePieceSpaces {
        prepends,
        merges: source.metadata.opt_bool(REMOVE_EXTRA_SPACES)?.unwrap_or(false),
    });
    let scores = source.scores()?;
    let min_score = source
        .iter()
        .filter(|&(_, _, kind)| kind == TokenKind::Normal)
        .map(|(id, _, _)| scores[id as usize])
        .fold(f32::INFINITY, f32::min);
    let unknown = source.special(UNKNOWN, Some(2))?;
    let token_scores = scores
        .iter()
        .zip(&source.kinds)
        .map(|(&score, &kind)| {
            // User-defined tokens are always taken.
            if kind == TokenKind::UserDefined {
                0.0
            } else {
                f64::from(score)
            }
        })
        .collect();
    let bytes = source.byte_tokens()?;
    let has_bytes = bytes.iter().all(Option::is_some);
    let keys = source.text_keys();
    let model = Unigram::new(
        keys.iter(),
        token_scores,
        if min_score.is_finite() {
            f64::from(min_score)
        } else {
            0.0
        },
        unknown,
        has_bytes.then_some(bytes),
    )?;
    Ok(Parts {
        model: Model::Unigram(model),
        pieces: source.metaspace_pieces()?,
        normalizers,
        steps: if can_split_before_metaspace(source) {
            vec![Step::BeforeMetaspace]
        } else {
            Vec::new()
        },
        strips_leading_space: true,
        defaults: Defaults {
            eos: Some(1),
            unknown,
            padding: Some(0),
            adds_eos: true,
            ..Defaults::default()
        },
    })
}

/// Adds the parts that all models share: special ids, added tokens, tokens around a text.
fn finish(source: &Source<'_>, parts: Parts, is_bert: bool, pre: &str) -> Result<Tokenizer, TokenizerError> {
    let metadata = source.metadata;
    let defaults = parts.defaults;
    let mut vocab = Vocab::new(parts.pieces.iter().zip(source.kinds.iter().copied()))?;
    vocab.strips_leading_space = parts.strips_leading_space;
    let special = &mut vocab.special;
    special.bos = match source.special(BOS, None)? {
        // BERT's first token is called the class token.
        None if is_bert => source.special(CLASS, defaults.bos)?,
        None => defaults.bos.filter(|&id| (id as usize) < source.tokens.len()),
        found => found,
    };
    special.eos = source.special(EOS, defaults.eos)?;
    special.unknown = source.special(UNKNOWN, defaults.unknown)?;
    special.separator = source.special(SEPARATOR, defaults.separator)?;
    special.padding = source.special(PADDING, defaults.padding)?;
    special.infill = infill_ids(source);
    special.end_of_generation = [source.special(EOT, None)?, source.special(EOM, None)?]
        .into_iter()
        .flatten()
        .collect();
    let (prefix, suffix) = if is_bert {
        (special.bos, special.separator)
    } else {
        // A flag in the file needs its token; a default without one is dropped.
        let wanted = |flag, key, default, id: Option<u32>| match metadata.opt_bool(flag)? {
            Some(true) if id.is_none() => Err(TokenizerError::MissingSpecialToken { flag, key }),
            asked => Ok(id.filter(|_| asked.unwrap_or(default))),
        };
        let bos = if pre == "gemma4" {
            special.bos
        } else {
            wanted(ADD_BOS, BOS, defaults.adds_bos, special.bos)?
        };
        (bos, wanted(ADD_EOS, EOS, defaults.adds_eos, special.eos)?)
    };
    vocab.find_end_of_generation();
    let tokenizer = Tokenizer {
        added: AddedTokens::new(added_tokens(source, pre)?)?,
        added_normalized: AddedTokens::new(Vec::new())?,
        vocab,
        normalizers: parts.normalizers,
        steps: parts.steps,
        model: parts.model,
        prefix: prefix.into_iter().collect(),
        suffix: suffix.into_iter().collect(),
    };
    limits::check(&tokenizer)?;
    Ok(tokenizer)
}

/// Returns the tokens to look for in text. No file says which of them take adjacent white space; this is known by model.
fn added_tokens(source: &Source<'_>, pre: &str) -> Result<Vec<AddedToken>, TokenizerError> {
    let name = source
        .metadata
        .opt_str("general.name")?
        .unwrap_or("")
        .to_lowercase();
    let architecture = source.metadata.opt_str("general.architecture")?.unwrap_or("");
    let is_phi3 = name.contains("phi-3") || name.contains("phi3");
    let mask_strips = matches!(pre, "jina-v2-de" | "jina-v2-es" | "jina-v2-code")
        || matches!(architecture, "nomic-bert-moe" | "jina-bert-v3");
    let tokens = source
        .iter()
        .filter(|(_, _, kind)| kind.is_special() || *kind == TokenKind::UserDefined)
        .map(|(id, text, kind)| AddedToken {
            strips_right: is_phi3 && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>"),
            strips_left: (mask_strips && text == "<mask>")
                || (name.contains("modern-bert") && text == "[MASK]"),
            ..AddedToken::new(id, text, kind.is_special())
        })
        .collect();
    Ok(tokens)
}
