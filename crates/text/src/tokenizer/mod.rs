//! [`Tokenizer`]: text to token ids and token ids to text.
//!
//! One type for every vocabulary: a chain of normalizers, splitters and one model, built by a reader for each file
//! format. Invariant: once built, it encodes any text and decodes any ids; nothing can fail or panic.

mod added;
mod bpe;
mod byte_level;
mod chars;
mod charsmap;
mod gguf;
mod gguf_keys;
mod huggingface;
mod key_map;
mod limits;
mod merge;
mod normalize;
mod pre_tokenizers;
mod split;
mod spm;
mod unigram;
mod vocab;
mod wordpiece;

use std::borrow::Cow;

use tokenmill_gguf::Metadata;

use crate::TokenizerError;

use added::{AddedTokens, Segment};
pub use gguf_keys::VocabularyFiles;
use merge::Merger;
use normalize::Normalizer;
use split::Step;
use vocab::Vocab;
pub use vocab::{InfillIds, TokenKind};

/// Selects how a text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Adds the tokens that the model wants around a text, such as one that begins a sequence.
    pub add_special: bool,
    /// Finds control tokens written out in the text (`<|im_end|>`). Off for text from users: it can then not contain
    /// one, whatever it says.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    /// Adds special tokens around the text, and parses none in it.
    fn default() -> Self {
        Self {
            add_special: true,
            parse_special: false,
        }
    }
}

/// Turns text into token ids and token ids into text.
///
/// ```
/// use tokenmill_gguf::{Metadata, StringArray};
/// use tokenmill_text::{DecodeOptions, EncodeOptions, Tokenizer};
///
/// let mut metadata = Metadata::new();
/// metadata.insert("tokenizer.ggml.model", "gpt2")?;
/// metadata.insert("tokenizer.ggml.pre", "gpt-2")?;
/// metadata.insert("tokenizer.ggml.tokens", StringArray::from_iter(["h", "i", "Ġ", "hi", "Ġhi", "<end>"]))?;
/// metadata.insert("tokenizer.ggml.token_type", vec![1, 1, 1, 1, 1, 3])?;
/// metadata.insert("tokenizer.ggml.merges", StringArray::from_iter(["h i", "Ġ hi"]))?;
///
/// let tokenizer = Tokenizer::from_gguf(&metadata)?;
/// let ids = tokenizer.encode("hi hi", EncodeOptions::default());
/// assert_eq!(ids, [3, 4]);
/// assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()), "hi hi");
/// let parsed = EncodeOptions { parse_special: true, ..EncodeOptions::default() };
/// assert_eq!(tokenizer.encode("hi<end>", parsed), [3, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    /// Tokens found in the text before normalization.
    added: AddedTokens,
    /// Tokens found in the text once it is normalized.
    added_normalized: AddedTokens,
    normalizers: Vec<Normalizer>,
    steps: Vec<Step>,
    model: Model,
    /// Tokens before each text; `suffix` holds the tokens after it.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

/// The model that turns a piece of text into tokens.
#[derive(Debug)]
enum Model {
    Bpe(bpe::Bpe),
    Spm(spm::Spm),
    WordPiece(wordpiece::WordPiece),
    Unigram(unigram::Unigram),
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file from its metadata.
    ///
    /// # Errors
    /// [`TokenizerError`]: an unknown model or pre-tokenizer, missing keys, or arrays and ids that do not match.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        gguf::read(metadata)
    }

    /// Builds the tokenizer that a Hugging Face `tokenizer.json` describes.
    ///
    /// # Errors
    /// [`TokenizerError`]: JSON of another form, an unknown part (named), or ids that do not match.
    pub fn from_tokenizer_json(json: &[u8]) -> Result<Self, TokenizerError> {
        huggingface::read(json)
    }

    /// Encodes a text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 4 + 2);
        if options.add_special {
            out.extend_from_slice(&self.prefix);
        }
        let mut merger = Merger::default();
        self.added
            .split(text, options.parse_special, &mut |segment| match segment {
                Segment::Token(id) => out.push(id),
                Segment::Text(part) => {
                    let is_start = part.as_ptr() == text.as_ptr();
                    self.encode_part(part, is_start, options.parse_special, &mut merger, &mut out);
                }
            });
        if options.add_special {
            out.extend_from_slice(&self.suffix);
        }
        out
    }

    /// Encodes text without added tokens that are looked for before normalization.
    fn encode_part(
        &self,
        part: &str,
        is_start: bool,
        parse_special: bool,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let normalized = self.normalize(part);
        self.added_normalized
            .split(&normalized, parse_special, &mut |segment| match segment {
                Segment::Token(id) => out.push(id),
                Segment::Text(text) => {
                    let is_start = is_start && text.as_ptr() == normalized.as_ptr();
                    split::run(&self.steps, text, is_start, &mut |piece| {
                        self.model.encode(piece, merger, out);
                    });
                }
            });
    }

    fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.normalizers
            .iter()
            .fold(Cow::Borrowed(text), |text, normalizer| normalizer.apply(text))
    }

    /// Returns the bytes of a token; `None` outside the vocabulary.
    ///
    /// A token for a part of a character has bytes that are not UTF-8. Decoding drops a space at the start of a text
    /// that encoding added; this function does not.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocab.bytes(id)
    }

    /// Returns the kind of a token; `None` outside the vocabulary.
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.vocab.kind(id)
    }

    /// Returns the id of a special or added token, by its text.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.added
            .id_of(text)
            .or_else(|| self.added_normalized.id_of(text))
    }

    /// Returns the number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// Returns the token that begins a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.vocab.special.bos
    }

    /// Returns the token that ends a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.vocab.special.eos
    }

    /// Returns the token for text that no other token covers.
    pub fn unknown(&self) -> Option<u32> {
        self.vocab.special.unknown
    }

    /// Returns the token between two texts.
    pub fn separator(&self) -> Option<u32> {
        self.vocab.special.separator
    }

    /// Returns the token that pads short sequences.
    pub fn padding(&self) -> Option<u32> {
        self.vocab.special.padding
    }

    /// Returns the tokens for filling in the middle that the file itself names.
    pub fn infill_ids(&self) -> InfillIds {
        self.vocab.special.infill
    }

    /// Returns whether [`EncodeOptions::add_special`] puts [`Self::bos`] before a text.
    pub fn adds_bos(&self) -> bool {
        self.bos().is_some_and(|bos| self.prefix.contains(&bos))
    }

    /// Returns whether [`EncodeOptions::add_special`] appends [`Self::eos`] to a text.
    pub fn adds_eos(&self) -> bool {
        self.eos().is_some_and(|eos| self.suffix.contains(&eos))
    }

    /// Returns all tokens that end a generation, ascending.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.vocab.special.end_of_generation
    }

    /// Returns whether decoding a text from its start drops one leading space.
    pub(crate) fn strips_leading_space(&self) -> bool {
        self.vocab.strips_leading_space
    }
}

impl Model {
    fn encode(&self, piece: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        match self {
            Self::Bpe(model) => model.encode(piece, merger, out),
            Self::Spm(model) => model.encode(piece, merger, out),
            Self::WordPiece(model) => model.encode(piece, out),
            Self::Unigram(model) => model.encode(piece, out),
        }
    }
}
