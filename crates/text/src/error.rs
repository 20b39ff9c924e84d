//! [`TokenizerError`]: why a tokenizer could not be built.
//!
//! The readers of both file formats share it, so they fail in the same words. Invariant: only building can fail; a
//! tokenizer that exists encodes any text and decodes any ids.

use tokenmill_gguf::GgufError;

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A metadata key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A tokenizer model that is not supported.
    #[error(
        "tokenizer model `{model}` is not supported; supported are gpt2, llama, bert, t5, gemma4 and whitespace"
    )]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// An unknown pre-tokenizer name.
    #[error("pre-tokenizer `{name}` is unknown; convert the model again or set `tokenizer.ggml.pre`")]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        name: String,
    },
    /// A pre-tokenizer without a name in GGUF files.
    #[error("no pre-tokenizer of GGUF files cuts text as this tokenizer does; name the nearest with --pre")]
    UnnamedPreTokenizer,
    /// A `tokenizer.model` that cannot be read.
    #[error("tokenizer.model cannot be read: {reason}")]
    SentencePiece {
        /// Why.
        reason: &'static str,
    },
    /// The vocabulary is empty.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// A token of a unigram vocabulary is too long for fast tokenization.
    #[error("token {id} has {n_bytes} bytes; in a unigram vocabulary at most {maximum} are read")]
    LongToken {
        /// Id of the token.
        id: u32,
        /// Length of the token, in bytes.
        n_bytes: usize,
        /// Longest allowed token, in bytes.
        maximum: usize,
    },
    /// The vocabulary is larger than ids or offsets can address.
    #[error(
        "the vocabulary has {n_tokens} tokens of {n_bytes} bytes together, more than 32-bit offsets can address"
    )]
    TooLarge {
        /// Number of tokens.
        n_tokens: usize,
        /// Their bytes.
        n_bytes: usize,
    },
    /// An array with another length than the tokens.
    #[error("`{key}` has {found} entries, but the vocabulary has {expected} tokens")]
    Length {
        /// The array.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Its length.
        found: usize,
    },
    /// Two tokens have the same text.
    #[error("tokens {first} and {second} are both `{text}`")]
    DuplicateToken {
        /// The text.
        text: String,
        /// The first token.
        first: u32,
        /// The second.
        second: u32,
    },
    /// Two tokens have the same id, or an id has none.
    #[error("token id {id} is {problem}")]
    TokenIds {
        /// The id.
        id: u32,
        /// Cause of the error.
        problem: &'static str,
    },
    /// A merge is not two parts.
    #[error("merge {index}, `{merge}`, is not two tokens with a space between")]
    MalformedMerge {
        /// Its place in the list.
        index: usize,
        /// The merge.
        merge: String,
    },
    /// A merge names a token that does not exist.
    #[error("merge {index} needs the token `{token}`, which the vocabulary does not have")]
    UnknownMergeToken {
        /// Its place in the list.
        index: usize,
        /// The token that is missing.
        token: String,
    },
    /// A named token that is not in the vocabulary.
    #[error("the token `{text}` is named, but the vocabulary does not have it")]
    UnknownToken {
        /// Its text.
        text: String,
    },
    /// A special token's id is outside the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {n_vocab} tokens")]
    TokenIdOutOfRange {
        /// The key.
        key: &'static str,
        /// The id.
        id: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
    /// A flag that needs a missing special token.
    #[error("`{flag}` is set, but `{key}` is missing")]
    MissingSpecialToken {
        /// The flag.
        flag: &'static str,
        /// The key that would name the token.
        key: &'static str,
    },
    /// A score is NaN.
    #[error("the score of token {id} is {score}, expected a finite number")]
    Score {
        /// The token.
        id: u32,
        /// Its score.
        score: f64,
    },
    /// A token marked as a byte does not read `<0xNN>`.
    #[error("token {id}, `{text}`, is marked as a byte, but does not read <0xNN>")]
    ByteToken {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A precompiled normalization table is damaged.
    #[error("the precompiled normalization table is damaged: {problem}")]
    Charsmap {
        /// Cause of the error.
        problem: &'static str,
    },
    /// Parts that together could expand a short text to gigabytes.
    #[error("tokenizer: its {what} can make a text {factor:.0} times as long, at most {maximum} is allowed")]
    Growth {
        /// Which parts.
        what: &'static str,
        /// Factor by which they can multiply the length.
        factor: f64,
        /// The most that is allowed.
        maximum: f64,
    },
    /// Normalizers that add too much text around each text.
    #[error("tokenizer: its normalizers add {n_bytes:.0} bytes to a text, at most {maximum} are allowed")]
    AddedText {
        /// Bytes that they add.
        n_bytes: f64,
        /// The most that is allowed.
        maximum: f64,
    },
    /// A larger number of something than any real tokenizer has.
    #[error("tokenizer: it has {found} {what}, at most {maximum} are allowed")]
    TooMany {
        /// Name of the counted items.
        what: &'static str,
        /// Number of items.
        found: usize,
        /// The most that is allowed.
        maximum: usize,
    },
    /// A splitting pattern cannot be used.
    #[error("the pattern `{pattern}` cannot be matched in linear time or is malformed")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Error of the compiler.
        source: Box<regex::Error>,
    },
    /// Too many added tokens for a matcher.
    #[error("no matcher can be built for the {n_tokens} special and added tokens")]
    AddedTokens {
        /// Number of tokens.
        n_tokens: usize,
        /// Error of the builder.
        source: Box<aho_corasick::BuildError>,
    },
    /// A `tokenizer.json` is not JSON or not of the expected form.
    #[error("not a valid tokenizer.json")]
    Json(#[from] serde_json::Error),
    /// A part of a `tokenizer.json` that is not implemented.
    #[error("tokenizer.json: {part} `{name}` is not supported")]
    UnsupportedPart {
        /// Name of the part, such as `normalizer`.
        part: &'static str,
        /// Its type or setting.
        name: String,
    },
}
