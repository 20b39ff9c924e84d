//! Constraints: text that has a shape, such as JSON of a schema.
//!
//! A [`Constraint`] describes the allowed texts. [`ConstraintCompiler`], one for each model, compiles it to a
//! [`CompiledConstraint`]. Each sample follows it with a [`ConstraintMatcher`], which computes a mask of the
//! tokens that may come next, then takes the chosen token.
//!
//! The key decision: every language becomes a grammar of `llguidance`, which computes masks over a trie of
//! the vocabulary. This module adds two rules. A constraint that cannot be enforced is refused before
//! anything is generated, never weakened; and a grammar without any finite text is refused too.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tokenmill_text::{Tokenizer, constraint::{Constraint, ConstraintCompiler}};
//!
//! let tokenizer = Tokenizer::from_tokenizer_json(&std::fs::read("tokenizer.json")?)?;
//! let compiler = ConstraintCompiler::new(&tokenizer)?;
//! let mut matcher = compiler.compile(&Constraint::regex("[0-9]{4}"))?.matcher(tokenizer.end_of_generation());
//! let mut mask = vec![0; tokenizer.n_vocab().div_ceil(32)];
//! matcher.mask(&mut mask)?;
//! # Ok(())
//! # }
//! ```

mod alternatives;
mod budget;
mod chains;
mod compiler;
mod controls;
mod error;
mod escape_tokens;
mod escapes;
mod finite;
mod gbnf;
mod grammar;
mod lark_references;
mod lead;
mod marker;
mod matcher;
mod places;
mod references;
mod schema;
mod schema_references;
mod time_limit;
mod vocabulary;

pub(crate) use alternatives::Told;
pub use compiler::{CompiledConstraint, ConstraintCompiler, ConstraintLimits};
pub use controls::ControlTokens;
pub(crate) use controls::Segment;
pub use error::{ConstraintError, ConstraintKind};
pub use grammar::Constraint;
pub(crate) use grammar::{CallGrammar, HeldTool, is_deeper_than, prepared};
pub(crate) use lead::Mark;
pub use matcher::ConstraintMatcher;
pub(crate) use references::Document;
