//! [`ReplyReader`]: separates reasoning, calls and text for a text stream.
//!
//! It is made from a conversation, so that streams know no conversations. Invariant: one reader serves the
//! answers to one prompt; each sample has its own parser.

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
