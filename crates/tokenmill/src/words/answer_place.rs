//! Checks that an answer begins right behind a prompt, for models whose first token is the answer.
//!
//! Templates differ in how they switch reasoning off, and some cannot. Invariant: a template passes only if a finished reply has
//! nothing but closed reasoning between the prompt and its text.

use serde_json::{Map, Value, json};
use tokenmill_text::calls::ReplyFormat;

use super::ModelWords;
use crate::{Conversation, Error, Turn, decide_error::DecideError};

/// The text of a reply, which no template writes.
const REPLY: &str = "ANSWERPLACE";

/// Names under which templates switch their reasoning off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Makes the conversation of a message whose reply begins without reasoning.
pub(crate) fn without_reasoning(message: &str) -> Conversation {
    let switches = SWITCHES.map(|name| (name.to_owned(), Value::Bool(false)));
    Conversation {
        variables: Map::from_iter(switches),
        ..Conversation::from(message)
    }
}

impl ModelWords {
    /// Checks that the text of a reply begins where the prompt of [`without_reasoning`] ends.
    ///
    /// # Errors
    /// [`DecideError::OpenReasoning`] and [`DecideError::AnswerHead`]; [`Error::NoTemplate`], or [`Error::Template`] if the template
    /// refuses a conversation of two messages.
    pub(crate) fn check_answer_place(&self) -> Result<(), Error> {
        let conversation = without_reasoning("Hello");
        let prompt = self.render_chat(&conversation)?;
        let prompt = prompt.trim_end();
        let format = self.replies.as_ref().map(|replies| &replies.format);
        if format.is_some_and(|format| format.opens_reasoning(prompt)) {
            return Err(DecideError::OpenReasoning.into());
        }
        let close = format.and_then(ReplyFormat::reasoning_close);
        if close.is_some_and(|close| prompt.ends_with(close.trim_end())) {
            return Ok(());
        }
        let mut replied = conversation;
        replied.turn = Turn::Closed;
        replied
            .messages
            .push(json!({"role": "assistant", "content": REPLY}));
        let replied = self.render_chat(&replied)?;
        let before = replied.find(REPLY).map_or("", |at| &replied[..at]);
        let between = before.trim_end().strip_prefix(prompt);
        match (between, close) {
            (Some(""), _) => Ok(()),
            (Some(between), Some(close)) if between.contains(close) => Err(DecideError::OpenReasoning.into()),
            _ => Err(DecideError::AnswerHead.into()),
        }
    }
}
