//! Prompts of conversations: the output of the chat template as tokens, with places for the images.
//!
//! Texts need the words but not this file. Invariant: the template sees the date of the day and the model's
//! settings, and a conversation's own settings override them.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value};
use tokenmill_text::{
    calls::ToolChoice,
    template::{ChatContext, CivilTime, RenderOptions},
};

use super::ModelWords;
use crate::{
    Conversation, Error, Turn,
    conversation::without_strict,
    images::{ImageFile, PromptImage, take_images},
    reply::Prompt,
    turns::with_turns_that_fit,
};

impl ModelWords {
    /// Turns a conversation into the tokens that the model answers. An image takes as many as it has rows.
    ///
    /// # Errors
    /// [`Error::NoTemplate`], what the template refused, or [`Error::NotContinuable`]; what [`Self::no_vision`] gives, [`Error::ImageUrl`]
    /// and [`Error::ImagePlaces`] where there are images, and [`Error::Engine`] where they take many times the context.
    pub fn encode_chat(&self, conversation: &Conversation) -> Result<Vec<u32>, Error> {
        Ok(self.encode_with_images(conversation)?.0)
    }

    /// The tokens of a conversation, and its images.
    fn encode_with_images(&self, conversation: &Conversation) -> Result<(Vec<u32>, Vec<PromptImage>), Error> {
        self.encode_showing(conversation, Vec::new())
    }

    /// The tokens of a conversation, and its images: those of its messages or, where these have `{"type": "image"}`, the given files.
    ///
    /// # Errors
    /// Returns the errors of [`Self::encode_chat`].
    pub(crate) fn encode_showing(
        &self,
        conversation: &Conversation,
        shown: Vec<ImageFile>,
    ) -> Result<(Vec<u32>, Vec<PromptImage>), Error> {
        let chat = self.chat.as_ref().ok_or_else(|| self.no_template())?;
        if !shown.is_empty() && self.images.is_none() {
            return Err(self.no_vision());
        }
        let (context, mut files) = self.context(conversation)?;
        files.extend(shown);
        let tokens = with_turns_that_fit(context, render_options(), |context, options| {
            match conversation.turn {
                Turn::Unfinished => chat.encode_unfinished(&self.tokenizer, context, options),
                Turn::Open | Turn::Closed => chat.encode(&self.tokenizer, context, options).map(Some),
            }
        })?;
        let tokens = tokens.ok_or(Error::NotContinuable)?;
        if files.is_empty() {
            return Ok((tokens, Vec::new()));
        }
        (self.images.as_ref())
            .ok_or_else(|| self.no_vision())?
            .place(&tokens, files)
    }

    /// Turns a conversation into its prompt, and says how the answer is read.
    ///
    /// # Errors
    /// Returns the errors of [`Self::encode_chat`]; [`Error::UnknownTool`], and [`Error::CallForm`] for calls that cannot be held to their
    /// schemas.
    pub fn prompt(&self, conversation: &Conversation) -> Result<Prompt, Error> {
        let (tokens, images) = self.encode_with_images(conversation)?;
        let tail = self.tail(&tokens);
        let reader = (self.replies.as_ref()).and_then(|replies| replies.reader(conversation, &tail));
        let calls = match &self.replies {
            Some(replies) => replies.calls(conversation, &tail)?,
            None => None,
        };
        Ok(Prompt {
            tokens,
            reader,
            is_call_required: calls.is_some() && conversation.tool_choice != ToolChoice::Auto,
            calls,
            images,
            media: Arc::new([]),
        })
    }

    /// Renders a conversation as the template writes it, to look at.
    ///
    /// # Errors
    /// Returns the errors of [`Self::encode_chat`].
    pub fn render_chat(&self, conversation: &Conversation) -> Result<String, Error> {
        let template = self.template().ok_or_else(|| self.no_template())?;
        let (context, _) = self.context(conversation)?;
        Ok(with_turns_that_fit(
            context,
            render_options(),
            |context, options| template.render(&context.to_json(), options),
        )?)
    }

    fn no_template(&self) -> Error {
        match &self.template_error {
            Some(error) => error.clone().into(),
            None => Error::NoTemplate,
        }
    }

    /// Returns the template's view of a conversation, and its images.
    pub(super) fn context(
        &self,
        conversation: &Conversation,
    ) -> Result<(ChatContext, Vec<ImageFile>), Error> {
        let mut messages = conversation.messages.clone();
        if let Some(replies) = &self.replies {
            messages = replies
                .writing
                .place_images_of_results(messages, self.images.is_some());
        }
        let files = take_images(&mut messages)?;
        if !files.is_empty() && self.images.is_none() {
            return Err(self.no_vision());
        }
        let context = ChatContext {
            messages: match &self.replies {
                Some(replies) => (replies.writing).messages(&messages, conversation.tools.as_ref()),
                None => messages,
            },
            tools: conversation.tools.as_ref().map(without_strict),
            add_generation_prompt: conversation.turn == Turn::Open,
            bos_token: self.bos_token.clone(),
            eos_token: self.eos_token.clone(),
            extra: self.variables_of(conversation),
        };
        Ok((context, files))
    }

    /// Collects the template's variables: the date, because templates otherwise use the day they were written, the model's settings, and
    /// those of the conversation.
    fn variables_of(&self, conversation: &Conversation) -> Map<String, Value> {
        let today = utc_now();
        let dates = [
            ("date_string".to_owned(), today.day_month_year().into()),
            ("datetime".to_owned(), today.month_day_year().into()),
        ];
        let mut variables = Map::from_iter(dates);
        variables.extend(self.variables.clone());
        variables.extend(conversation.variables.clone());
        variables
    }
}

/// The time that a template sees as now, in UTC.
pub fn utc_now() -> CivilTime {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    CivilTime::from_unix_seconds(seconds as i64)
}

/// Returns the options of a rendering now.
pub(super) fn render_options() -> RenderOptions {
    RenderOptions {
        now: utc_now(),
        ..RenderOptions::default()
    }
}
