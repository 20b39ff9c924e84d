//! Converts text to token ids and back.
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
//! [`calls::ReplyParser`] reads reasoning and tool calls in a model's answer, in each family's format.
//!
//! The crate uses no network, no device and no file.
//!
//! ```
//! use tokenmill_text::{DecodeOptions, EncodeOptions, StopMatcher, StreamDecoder, Tokenizer};
//!
//! // A vocabulary as Hugging Face writes it; `Tokenizer::from_gguf` reads that of a GGUF file.
//! let tokenizer = Tokenizer::from_tokenizer_json(
//!     br#"{
//!         "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false },
//!         "decoder": { "type": "ByteLevel" },
//!         "model": {
//!             "type": "BPE",
//!             "vocab": { "H": 0, "i": 1, "!": 2, "Hi": 3 },
//!             "merges": ["H i"]
//!         }
//!     }"#,
//! )?;
//! let ids = tokenizer.encode("Hi!", EncodeOptions::default());
//! assert_eq!(ids, [3, 2]);
//!
//! // Ids as they are generated become text, up to a stop string.
//! let mut decoder = StreamDecoder::new(&tokenizer, DecodeOptions::default());
//! let mut matcher = StopMatcher::new(["!"]);
//! let mut text = String::new();
//! for id in ids {
//!     let piece = decoder.push(id);
//!     text.push_str(&matcher.push(piece).text);
//! }
//! assert_eq!((text.as_str(), matcher.stopped_by()), ("Hi", Some(0)));
//! # Ok::<(), tokenmill_text::TokenizerError>(())
//! ```
#![forbid(unsafe_code)]

pub mod calls;
mod chat_prompt;
pub mod constraint;
mod detokenizer;
mod error;
mod image_words;
mod stop;
pub mod template;
mod tokenizer;

pub use chat_prompt::ChatPrompt;
pub use detokenizer::{DecodeOptions, StreamDecoder};
pub use error::TokenizerError;
pub use image_words::ImageWords;
pub use stop::{StopMatcher, StopProgress};
pub use tokenizer::{EncodeOptions, InfillIds, TokenKind, Tokenizer, VocabularyFiles};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
