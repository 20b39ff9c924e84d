//! [`ReplyReader`]: what a text stream needs to tell reasoning, calls and text apart.
//!
//! Separate from the conversation that it is made of, so that streams know no conversations. Invariant: one reader is for the
//! answers to one prompt; each sample parses with a parser of its own.

use std::sync::Arc;

use tokenmill_text::calls::ReplyParser;

/// Reads the answers to one prompt: reasoning, tool calls and text.
#[derive(Clone, Debug)]
pub struct ReplyReader {
    pub(crate) parser: ReplyParser,
    /// Control tokens that are marks of the format, ascending.
    pub(crate) shown: Arc<[u32]>,
    pub(crate) is_single_call: bool,
}
