//! Reads a tokenizer from GGUF metadata.
//!
//! Untrusted arrays and ids are checked against each other here. Invariant: the returned tokenizer has no id outside its vocabulary.
//!
//! Source: llama.cpp `src/llama-vocab.cpp`, for keys, defaults and the meaning of each model.

mod source;

use tokenmill_gguf::Metadata;

use crate::TokenizerError;

use self::source::{Source, byte_of, infill_ids, is_text};
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
    vocab::{TokenKind, Vocab},
    wordpiece::{WordPiece, bert_steps, wordpiece_piece},
};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const SEPARATOR: &str = "tokenizer.ggml.seperator_token_id";
const PADDING: &str = "tokenizer.ggml.padding_token_id";
const CLASS: &str = "tokenizer.ggml.cls_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const REMOVE_EXTRA_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

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
            steps.extend(before_metaspace(source));
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

/// Returns the step that splits before `▁` if no token has one after another character, so that no merge crosses such a place.
fn before_metaspace(source: &Source<'_>) -> Option<Step> {
    let can_split = source
        .iter()
        .filter(|&(_, _, kind)| is_text(kind))
        .all(|(_, text, _)| !text.trim_start_matches(METASPACE).contains(METASPACE));
    can_split.then_some(Step::BeforeMetaspace)
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
        steps: before_metaspace(source).into_iter().collect(),
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
        steps: before_metaspace(source).into_iter().collect(),
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
    let mask_strips = matches!(pre, "jina-v2-de" | "jina-v2-es" | "jina-v2-code" | "mmbert")
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
