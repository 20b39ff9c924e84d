//! [`AnswerPlace`]: the end of every prompt, after which an answer begins, for models whose first token is the answer.
//!
//! Templates differ in how they switch reasoning off, and some cannot. Invariant: a template passes only if a finished reply has
//! nothing but closed reasoning and white space between the prompt and its text.

use serde_json::{Map, Value, json};
use tokenmill_text::calls::ReplyFormat;

use super::ModelWords;
use crate::{Conversation, Error, Turn, decide_error::DecideError};

/// The text of a reply, which no template writes.
const REPLY: &str = "ANSWERPLACE";

/// The text of a message, which no template writes.
const MESSAGE: &str = "MESSAGEPLACE";

/// Names under which templates switch their reasoning off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Makes the conversation of a message whose reply begins without reasoning. `content` is a text or a list of parts.
pub(crate) fn without_reasoning(content: &Value) -> Conversation {
    let switches = SWITCHES.map(|name| (name.to_owned(), Value::Bool(false)));
    Conversation {
        variables: Map::from_iter(switches),
        ..Conversation::from_json(vec![json!({"role": "user", "content": content})])
    }
}

/// The place of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerPlace {
    /// The text that the template writes after a message: the end of each prompt.
    pub(crate) end: String,
    /// The white space that it writes before the text of a reply.
    pub(crate) gap: String,
}

impl ModelWords {
    /// Returns the place where the prompts of [`without_reasoning`] end and the text of a reply begins.
    ///
    /// # Errors
    /// [`DecideError::OpenReasoning`] and [`DecideError::AnswerHead`]; [`Error::NoTemplate`], or [`Error::Template`] if the template
    /// refuses a conversation of two messages.
    pub(crate) fn answer_place(&self) -> Result<AnswerPlace, Error> {
        let conversation = without_reasoning(&MESSAGE.into());
        let prompt = self.render_chat(&conversation)?;
        let end = prompt.rsplit_once(MESSAGE).ok_or(DecideError::AnswerHead)?.1;
        let place = |gap: &str| AnswerPlace {
            end: end.to_owned(),
            gap: gap.to_owned(),
        };
        let trimmed = prompt.trim_end();
        let format = self.replies.as_ref().map(|replies| &replies.format);
        if format.is_some_and(|format| format.opens_reasoning(trimmed)) {
            return Err(DecideError::OpenReasoning.into());
        }
        let close = format.and_then(ReplyFormat::reasoning_close);
        if close.is_some_and(|close| trimmed.ends_with(close.trim_end())) {
            return Ok(place(""));
        }
        let mut replied = conversation;
        replied.turn = Turn::Closed;
        replied
            .messages
            .push(json!({"role": "assistant", "content": REPLY}));
        let replied = self.render_chat(&replied)?;
        let before = replied.find(REPLY).map_or("", |at| &replied[..at]);
        let between = before.strip_prefix(trimmed);
        match (between, close) {
            // Some prompts end with white space that a reply does not begin with.
            (Some(between), _) if between.trim().is_empty() => {
                Ok(place(before.strip_prefix(prompt.as_str()).unwrap_or("")))
            }
            (Some(between), Some(close)) if between.contains(close) => Err(DecideError::OpenReasoning.into()),
            _ => Err(DecideError::AnswerHead.into()),
        }
    }
}
