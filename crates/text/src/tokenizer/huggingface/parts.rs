//! The parts of a `tokenizer.json`, and their compiled forms. There is one type per kind of part, and one
//! variant per part.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;

use crate::{
    TokenizerError,
    tokenizer::{
        byte_level,
        charsmap::{Charsmap, Matching},
        limits,
        normalize::{BertNormalizer, Normalizer},
        split::{Behavior, METASPACE, Pattern, Prepend, Step, WordRule},
        vocab::TokenKind,
        wordpiece::{bert_steps, wordpiece_piece},
    },
};

fn unsupported<T>(part: &'static str, name: impl Into<String>) -> Result<T, TokenizerError> {
    Err(TokenizerError::UnsupportedPart {
        part,
        name: name.into(),
    })
}

/// A text or a regular expression.
#[derive(Deserialize)]
pub(super) enum PatternPart {
    String(String),
    Regex(String),
}

/// Returns the default of flags that are on unless the file says otherwise.
fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum NormalizerPart {
    Sequence {
        normalizers: Vec<NormalizerPart>,
    },
    BertNormalizer {
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: Option<bool>,
        lowercase: bool,
    },
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFD")]
    Nfd,
    #[serde(rename = "NFKC")]
    Nfkc,
    #[serde(rename = "NFKD")]
    Nfkd,
    Lowercase,
    StripAccents,
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: PatternPart,
        content: String,
    },
    Precompiled {
        precompiled_charsmap: Option<String>,
    },
    #[serde(untagged)]
    Other {
        #[serde(rename = "type")]
        name: String,
    },
}

impl NormalizerPart {
    pub(super) fn compile(self, out: &mut Vec<Normalizer>) -> Result<(), TokenizerError> {
        out.push(match self {
            Self::Sequence { normalizers } => {
                return normalizers.into_iter().try_for_each(|part| {
                    part.compile(out)?;
                    limits::check_parts("normalizers", out.len())
                });
            }
            Self::BertNormalizer {
                clean_text,
                handle_chinese_chars,
                strip_accents,
                lowercase,
            } => Normalizer::Bert(BertNormalizer {
                cleans: clean_text,
                splits_chinese: handle_chinese_chars,
                strips_accents: strip_accents.unwrap_or(lowercase),
                lowercases: lowercase,
            }),
            Self::Nfc => Normalizer::Nfc,
            Self::Nfd => Normalizer::Nfd,
            Self::Nfkc => Normalizer::Nfkc,
            Self::Nfkd => Normalizer::Nfkd,
            Self::Lowercase => Normalizer::Lowercase,
            Self::StripAccents => Normalizer::StripAccents,
            Self::Strip {
                strip_left,
                strip_right,
            } => Normalizer::Strip {
                left: strip_left,
                right: strip_right,
            },
            Self::Prepend { prepend } => Normalizer::Prepend(prepend),
            Self::Replace {
                pattern: PatternPart::String(from),
                content,
            } => {
                if from.is_empty() {
                    return Ok(());
                }
                Normalizer::Replace { from, to: content }
            }
            Self::Replace {
                pattern: PatternPart::Regex(pattern),
                content,
            } => Normalizer::ReplacePattern {
                from: regex::Regex::new(&pattern).map_err(|error| TokenizerError::Pattern {
                    pattern,
                    source: Box::new(error),
                })?,
                to: content,
            },
            Self::Precompiled { precompiled_charsmap } => {
                let Some(text) = precompiled_charsmap.filter(|text| !text.is_empty()) else {
                    return Ok(());
                };
                let blob = STANDARD.decode(text).map_err(|_| TokenizerError::Charsmap {
                    problem: "it is not base64",
                })?;
                Normalizer::Charsmap(Charsmap::new(&blob, Matching::Graphemes)?)
            }
            Self::Other { name } => return unsupported("normalizer", name),
        });
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizerPart {
    Sequence {
        pretokenizers: Vec<PreTokenizerPart>,
    },
    ByteLevel {
        #[serde(default = "yes")]
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Split {
        pattern: PatternPart,
        behavior: Behavior,
        #[serde(default)]
        invert: bool,
    },
    Digits {
        #[serde(default)]
        individual_digits: bool,
    },
    Punctuation {
        behavior: Option<Behavior>,
    },
    Metaspace {
        replacement: char,
        prepend_scheme: Option<PrependPart>,
        add_prefix_space: Option<bool>,
        #[serde(default = "yes")]
        split: bool,
    },
    BertPreTokenizer,
    Whitespace,
    WhitespaceSplit,
    CharDelimiterSplit {
        delimiter: char,
    },
    #[serde(untagged)]
    Other {
        #[serde(rename = "type")]
        name: String,
    },
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PrependPart {
    First,
    Never,
    Always,
}

/// The steps of splitting as they are collected.
#[derive(Default)]
pub(super) struct Splitter {
    pub(super) steps: Vec<Step>,
    /// Whether the text was turned into GPT-2's stand-ins for bytes.
    pub(super) is_byte_level: bool,
}

impl PreTokenizerPart {
    pub(super) fn compile(self, out: &mut Splitter) -> Result<(), TokenizerError> {
        let pattern = |source: &str, behavior| Pattern::new(source, behavior, false).map(Step::Pattern);
        match self {
            Self::Sequence { pretokenizers } => {
                return pretokenizers.into_iter().try_for_each(|part| {
                    part.compile(out)?;
                    limits::check_parts("pre-tokenizers", out.steps.len())
                });
            }
            Self::ByteLevel {
                add_prefix_space,
                use_regex,
            } => {
                if add_prefix_space {
                    out.steps.push(Step::PrefixSpace);
                }
                if use_regex {
                    out.steps.push(Step::Words(WordRule::GPT2));
                }
                out.is_byte_level = true;
            }
            Self::Split {
                pattern: PatternPart::Regex(source),
                behavior,
                invert,
            } => out.steps.push(match Pattern::known_rule(&source) {
                // Every character is in a match of these rules, so removing the rest changes nothing.
                Some(rule) if behavior == Behavior::Isolated || (behavior == Behavior::Removed && invert) => {
                    Step::Words(rule)
                }
                _ => Step::Pattern(Pattern::new(&source, behavior, invert)?),
            }),
            Self::Split {
                pattern: PatternPart::String(text),
                behavior,
                invert,
            } => {
                if !text.is_empty() {
                    out.steps
                        .push(Step::Pattern(Pattern::literal(&text, behavior, invert)?));
                }
            }
            Self::Digits { individual_digits } => {
                // After a byte-level step the original sees stand-ins, among which only ASCII digits stay whole
                // characters; vocabularies trained this way have no merge across the others.
                let digit = if out.is_byte_level { "[0-9]" } else { r"\p{N}" };
                let source = if individual_digits {
                    digit.to_owned()
                } else {
                    format!("{digit}+")
                };
                out.steps.push(pattern(&source, Behavior::Isolated)?);
            }
            Self::Punctuation { behavior } => {
                let behavior = behavior.unwrap_or(Behavior::Isolated);
                out.steps.push(pattern(r"[\p{P}!-/:-@\[-`{-\~]", behavior)?);
            }
            Self::Metaspace {
                replacement,
                prepend_scheme,
                add_prefix_space,
                split,
            } => {
                if replacement.to_string() != METASPACE {
                    return unsupported("Metaspace replacement", replacement);
                }
                let prepend = match (prepend_scheme, add_prefix_space) {
                    (Some(PrependPart::First), _) => Prepend::AtStart,
                    (Some(PrependPart::Never), _) | (None, Some(false)) => Prepend::Never,
                    (Some(PrependPart::Always) | None, _) => Prepend::Always,
                };
                out.steps.push(Step::Metaspace { prepend, split });
            }
            Self::BertPreTokenizer => out.steps.extend(bert_steps()?),
            Self::Whitespace => out.steps.push(Step::Pattern(Pattern::new(
                r"\w+|[^\w\s]+",
                Behavior::Removed,
                true,
            )?)),
            Self::WhitespaceSplit => out.steps.push(pattern(r"\s", Behavior::Removed)?),
            Self::CharDelimiterSplit { delimiter } => out.steps.push(Step::Pattern(Pattern::literal(
                &delimiter.to_string(),
                Behavior::Removed,
                false,
            )?)),
            Self::Other { name } => return unsupported("pre-tokenizer", name),
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PostProcessorPart {
    Sequence {
        processors: Vec<PostProcessorPart>,
    },
    TemplateProcessing {
        single: Vec<TemplatePart>,
        #[serde(default)]
        special_tokens: std::collections::HashMap<String, TemplateToken>,
    },
    BertProcessing {
        sep: (String, u32),
        cls: (String, u32),
    },
    RobertaProcessing {
        sep: (String, u32),
        cls: (String, u32),
    },
    ByteLevel {},
    #[serde(untagged)]
    Other {
        #[serde(rename = "type")]
        name: String,
    },
}

#[derive(Deserialize)]
pub(super) enum TemplatePart {
    SpecialToken { id: String },
    Sequence { id: String },
}

#[derive(Deserialize)]
pub(super) struct TemplateToken {
    ids: Vec<u32>,
}

/// The ids around a text.
#[derive(Default)]
pub(super) struct Around {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

impl PostProcessorPart {
    pub(super) fn compile(self) -> Result<Around, TokenizerError> {
        match self {
            // The parts of a sequence wrap the text from the inside out.
            Self::Sequence { processors } => {
                processors.into_iter().try_fold(Around::default(), |inner, part| {
                    let outer = part.compile()?;
                    limits::check_around(inner.len() + outer.len())?;
                    Ok(Around {
                        prefix: [outer.prefix, inner.prefix].concat(),
                        suffix: [inner.suffix, outer.suffix].concat(),
                    })
                })
            }
            Self::TemplateProcessing {
                single,
                special_tokens,
            } => {
                let mut around = Around::default();
                let mut is_behind = false;
                for part in single {
                    match part {
                        TemplatePart::Sequence { id } if id != "A" || is_behind => {
                            return unsupported("template", id);
                        }
                        TemplatePart::Sequence { .. } => is_behind = true,
                        TemplatePart::SpecialToken { id } => {
                            let Some(token) = special_tokens.get(&id) else {
                                return Err(TokenizerError::UnknownToken { text: id });
                            };
                            let side = if is_behind {
                                &mut around.suffix
                            } else {
                                &mut around.prefix
                            };
                            side.extend_from_slice(&token.ids);
                            limits::check_around(around.len())?;
                        }
                    }
                }
                Ok(around)
            }
            Self::BertProcessing { sep, cls } | Self::RobertaProcessing { sep, cls } => Ok(Around {
                prefix: vec![cls.1],
                suffix: vec![sep.1],
            }),
            Self::ByteLevel {} => Ok(Around::default()),
            Self::Other { name } => unsupported("post-processor", name),
        }
    }
}

impl Around {
    fn len(&self) -> usize {
        self.prefix.len() + self.suffix.len()
    }

    /// Returns the ids, once each is known to be in the vocabulary.
    pub(super) fn resolve(self, texts: &[Option<String>]) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
        let out_of_range = |id: &&u32| texts.get(**id as usize).is_none_or(Option::is_none);
        match self.prefix.iter().chain(&self.suffix).find(out_of_range) {
            Some(&id) => Err(TokenizerError::TokenIdOutOfRange {
                key: "post_processor",
                id,
                n_vocab: texts.len(),
            }),
            None => Ok((self.prefix, self.suffix)),
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum DecoderPart {
    Sequence {
        decoders: Vec<DecoderPart>,
    },
    ByteLevel {},
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    Metaspace {
        replacement: char,
        prepend_scheme: Option<PrependPart>,
        add_prefix_space: Option<bool>,
    },
    Replace {
        pattern: PatternPart,
        content: String,
    },
    ByteFallback {},
    Fuse {},
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    #[serde(untagged)]
    Other {
        #[serde(rename = "type")]
        name: String,
    },
}

/// How token texts turn into bytes.
#[derive(Default)]
pub(super) struct Spelling {
    is_byte_level: bool,
    /// The mark of tokens that continue a word, and whether spaces before punctuation go.
    wordpiece: Option<(String, bool)>,
    replacements: Vec<(String, String)>,
    has_byte_tokens: bool,
    pub(super) strips_leading_space: bool,
}

impl DecoderPart {
    pub(super) fn compile(self) -> Result<Spelling, TokenizerError> {
        let mut spelling = Spelling::default();
        self.collect(&mut spelling)?;
        limits::check_decoder(&spelling.replacements)?;
        Ok(spelling)
    }

    fn collect(self, out: &mut Spelling) -> Result<(), TokenizerError> {
        match self {
            Self::Sequence { decoders } => {
                return decoders.into_iter().try_for_each(|part| part.collect(out));
            }
            Self::ByteLevel {} => out.is_byte_level = true,
            Self::WordPiece { prefix, cleanup } => {
                out.wordpiece = Some((prefix, cleanup));
                out.strips_leading_space = true;
            }
            Self::Metaspace {
                replacement,
                prepend_scheme,
                add_prefix_space,
            } => {
                out.replacements.push((replacement.to_string(), " ".to_owned()));
                out.strips_leading_space =
                    !matches!(prepend_scheme, Some(PrependPart::Never)) && add_prefix_space != Some(false);
            }
            Self::Replace {
                pattern: PatternPart::String(from),
                content,
            } if !from.is_empty() => out.replacements.push((from, content)),
            Self::Replace { .. } => return unsupported("decoder", "Replace of a pattern"),
            Self::ByteFallback {} => out.has_byte_tokens = true,
            Self::Fuse {} => {}
            Self::Strip {
                content: ' ',
                start: 1,
                stop: 0,
            } => out.strips_leading_space = true,
            Self::Strip { content, .. } => return unsupported("decoder", format!("Strip of `{content}`")),
            Self::Other { name } => return unsupported("decoder", name),
        }
        Ok(())
    }
}

impl Spelling {
    /// Returns the bytes of a token.
    pub(super) fn decode(&self, text: &str, kind: TokenKind) -> Vec<u8> {
        if let Some((prefix, cleanup)) = &self.wordpiece {
            return match text.strip_prefix(prefix.as_str()) {
                Some(rest) => rest.as_bytes().to_vec(),
                None if *cleanup => wordpiece_piece(text),
                None => format!(" {text}").into_bytes(),
            };
        }
        let is_model_text = matches!(kind, TokenKind::Normal | TokenKind::Byte);
        if self.is_byte_level
            && is_model_text
            && let Some(bytes) = byte_level::decode(text)
        {
            return bytes;
        }
        if self.has_byte_tokens
            && is_model_text
            && let Some(byte) = byte_level::byte_of_token(text)
        {
            return vec![byte];
        }
        self.replacements
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
            .into_bytes()
    }
}
