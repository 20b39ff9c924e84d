//! Reads a model's answers, by facts that are derived once from its chat template.
//!
//! The words look at prompts, this file at answers. Invariant: a control token is part of an answer's text
//! only if it is a mark of the model's own format; the parser removes it again.

use std::sync::Arc;

use tokenmill_sched::{ContextShift, Media};
use tokenmill_text::{
    TokenKind, Tokenizer,
    calls::{Opening, ReplyFormat, ReplyParser, ToolChoice, ToolSet},
    constraint::{Constraint, ControlTokens},
    template::ChatTemplate,
};

use crate::{
    Conversation, Error,
    images::{self, PromptImage},
    reply_reader::ReplyReader,
    tool_writing::ToolWriting,
};

/// A conversation's prompt, and how its answer is read.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The prompt as token ids.
    pub tokens: Vec<u32>,
    /// Reads the answer; `None` where all of it is text.
    pub reader: Option<ReplyReader>,
    /// The constraint on calls in the answer, if tools are offered.
    pub calls: Option<Constraint>,
    /// Whether the answer must contain a call.
    pub is_call_required: bool,
    /// Its images, whose rows [`Model::see`](crate::Model::see) makes.
    pub images: Vec<PromptImage>,
    /// The rows of its images, once they are made.
    pub media: Arc<[Media]>,
}

impl Prompt {
    /// A prompt whose answer is text.
    pub fn of_text(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            reader: None,
            calls: None,
            is_call_required: false,
            images: Vec::new(),
            media: Arc::new([]),
        }
    }

    /// Cuts a prompt that fills a context of `n_ctx` tokens as [`ContextShift::cut`] does, before its images' rows are made. An image
    /// that would be cut is dropped whole, so that a few tokens more go. Returns how many tokens were dropped.
    pub fn cut(&mut self, shift: ContextShift, n_ctx: usize) -> usize {
        debug_assert!(self.media.is_empty(), "rows that are made have their places");
        let dropped = shift.dropped(self.tokens.len(), n_ctx);
        images::cut(&mut self.tokens, &mut self.images, dropped)
    }
}

/// The formats of calls and reasoning, as the model's chat template defines them.
#[derive(Debug)]
pub(crate) struct ReplyWords {
    pub(crate) format: ReplyFormat,
    pub(crate) writing: ToolWriting,
    shown: Arc<[u32]>,
    shown_with_tools: Arc<[u32]>,
    controls: ControlTokens,
}

impl ReplyWords {
    pub(crate) fn new(template: &ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let format = ReplyFormat::of_template(template.source());
        let any_tool = ToolSet::new([("any".to_owned(), serde_json::Value::Null)]);
        let special: Vec<(u32, String)> = (0..tokenizer.n_vocab() as u32)
            .filter(|&id| tokenizer.token_kind(id).is_some_and(TokenKind::is_special))
            .filter_map(|id| {
                let text = String::from_utf8_lossy(tokenizer.token_bytes(id)?).into_owned();
                (!text.is_empty()).then_some((id, text))
            })
            .collect();
        let shown = |tools: ToolSet| {
            let marks = ReplyParser::new(&format, Arc::new(tools), Opening::default()).marks();
            let is_mark = |text: &str| marks.iter().any(|mark| mark.contains(text));
            let ids = special.iter().filter(|(_, text)| is_mark(text));
            ids.map(|&(id, _)| id).collect()
        };
        Self {
            writing: ToolWriting::of(template),
            shown: shown(ToolSet::default()),
            shown_with_tools: shown(any_tool),
            controls: ControlTokens::of(tokenizer),
            format,
        }
    }

    /// Reads the answer to a prompt that ends in `tail`.
    pub(crate) fn reader(&self, conversation: &Conversation, tail: &str) -> Option<ReplyReader> {
        let tools = conversation.tools.as_ref().map(ToolSet::from_openai);
        let tools = Arc::new(tools.unwrap_or_default());
        if tools.is_empty() && !self.format.has_reasoning() && !self.format.has_heads() {
            return None;
        }
        let opening = Opening {
            is_reasoning: self.format.opens_reasoning(tail),
            is_head: self.format.opens_head(tail),
        };
        let shown = if tools.is_empty() {
            &self.shown
        } else {
            &self.shown_with_tools
        };
        Some(ReplyReader {
            shown: Arc::clone(shown),
            is_single_call: conversation.is_single_call,
            parser: ReplyParser::new(&self.format, tools, opening),
        })
    }

    /// Returns the constraint on calls in the answer to a prompt that ends in `tail`.
    pub(crate) fn calls(&self, conversation: &Conversation, tail: &str) -> Result<Option<Constraint>, Error> {
        let Some(tools) = conversation.tools.as_ref().map(ToolSet::from_openai) else {
            return Ok(None);
        };
        match &conversation.tool_choice {
            ToolChoice::Named(name) if !tools.contains(name) => {
                return Err(Error::UnknownTool { name: name.clone() });
            }
            _ if tools.is_empty() => return Ok(None),
            _ => {}
        }
        let constraint = self.format.constraint(
            &tools,
            &conversation.tool_choice,
            conversation.is_single_call,
            &self.controls,
            self.format.opens_head(tail),
        )?;
        Ok(Some(constraint))
    }
}
