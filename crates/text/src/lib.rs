//! The words of tokenmill: text to token ids and back.
//!
//! [`Tokenizer`] is one type for every vocabulary: byte-level byte-pair encoding, SentencePiece, WordPiece and unigram,
//! read from GGUF metadata or from a `tokenizer.json`. [`StreamDecoder`] turns ids into text as they are generated and
//! never cuts a character; [`StopMatcher`] finds stop strings in that text and never lets a part of one out.
//!
//! The key decision: everything that can fail fails when a tokenizer is built. Vocabulary files are untrusted; once
//! one was accepted, any text encodes and any ids decode, in time linear in the text (merging one long word takes
//! n log n). There is no backtracking matcher anywhere.
//!
//! [`template::ChatTemplate`] renders a conversation into the text that a model was trained on, and
//! [`ChatPrompt`] into its ids, so that no message can smuggle in a control token.
//!
//! [`calls::ReplyParser`] reads reasoning and tool calls out of what a model answers, in each family's format.
//!
//! No network, no device and no file is known here.
#![forbid(unsafe_code)]

pub mod calls;
mod chat_prompt;
pub mod constraint;
mod detokenizer;
mod error;
mod stop;
pub mod template;
mod tokenizer;

pub use chat_prompt::ChatPrompt;
pub use detokenizer::{DecodeOptions, StreamDecoder};
pub use error::TokenizerError;
pub use stop::{StopMatcher, StopProgress};
pub use tokenizer::{EncodeOptions, TokenKind, Tokenizer};
