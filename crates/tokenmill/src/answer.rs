//! [`Answer`]: a finished sample, and the conversion of a stream's events to answers.
//!
//! Readers of single pieces need none of it. Invariant: a sample without an end is an error, never an answer.

use serde_json::{Map, Value, json};
use tokenmill_sched::{EngineError, FinishReason, Timings, Usage};
use tokenmill_text::calls::Part;

use crate::{
    Error,
    text_stream::{Delta, ScoredToken, TextEnd, TextEvent, TextStream},
    wait::wait,
};

/// A finished sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The text, without reasoning, calls, stop strings and end-of-text tokens.
    pub text: String,
    /// The reasoning before the text, if the model's format marks it.
    pub reasoning: String,
    /// The tool calls.
    pub calls: Vec<ToolCall>,
    /// The call that a token limit or the reader cut off. Its arguments are the beginning of a JSON object,
    /// or empty.
    pub cut_call: Option<ToolCall>,
    /// The tokens of that text.
    pub tokens: Vec<ScoredToken>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The stop string that ended it, as an index into the request's list.
    pub stopped_by: Option<usize>,
    /// The tokens that the request used.
    pub usage: Usage,
    /// Tokens of the reasoning, which `usage` counts too.
    pub reasoning_tokens: usize,
    /// How long the request took.
    pub timings: Timings,
}

impl Answer {
    /// As a message of a conversation, with its reasoning and its calls, in the form of OpenAI's messages. A call that was cut is left out:
    /// no result can follow it.
    pub fn to_message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.iter().map(ToolCall::to_openai).collect();
        }
        message
    }
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The id that the caller sends back with the result.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: String,
}

impl ToolCall {
    /// Its arguments as an object; of a call that was cut, those that are certainly whole.
    pub fn whole_arguments(&self) -> Map<String, Value> {
        let json = &self.arguments;
        let read = |json: &str| serde_json::from_str(json).ok();
        if let Some(all) = read(json) {
            return all;
        }
        // Up to the last comma between members: a number before the cut may have more digits.
        let (mut depth, mut in_string, mut is_escaped, mut end) = (0_usize, false, false, None);
        for (at, byte) in json.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if in_string => is_escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                b',' if depth == 1 => end = Some(at),
                _ => {}
            }
        }
        end.and_then(|end| read(&format!("{}}}", &json[..end])))
            .unwrap_or_default()
    }

    /// In the form of OpenAI's `tool_calls`.
    pub fn to_openai(&self) -> Value {
        json!({"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}})
    }
}

/// A finished sample, with all that the stream said of its end.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its text.
    pub text: String,
    /// Its reasoning.
    pub reasoning: String,
    /// Its calls.
    pub calls: Vec<ToolCall>,
    /// The call within which it was cut.
    pub cut_call: Option<ToolCall>,
    /// The tokens of that text.
    pub tokens: Vec<ScoredToken>,
    /// How it ended.
    pub end: TextEnd,
}

impl Sample {
    /// Its calls, and last the one within which it was cut.
    pub fn all_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.calls.iter().chain(&self.cut_call)
    }
}

impl From<Sample> for Answer {
    fn from(sample: Sample) -> Self {
        let end = sample.end;
        Self {
            text: sample.text,
            reasoning: sample.reasoning,
            calls: sample.calls,
            cut_call: sample.cut_call,
            tokens: sample.tokens,
            finish: end.finished.reason,
            stopped_by: end.stopped_by,
            usage: end.finished.usage,
            reasoning_tokens: end.reasoning_tokens,
            timings: end.finished.timings,
        }
    }
}

impl TextStream {
    /// Gathers every sample, without blocking a thread. The answers are in the order of the samples.
    ///
    /// # Errors
    /// Why a sample failed; the others are then cancelled.
    pub async fn answers(self) -> Result<Vec<Answer>, Error> {
        let samples = self.gather(|_| {}).await?;
        Ok(samples.into_iter().map(Answer::from).collect())
    }

    /// Does the same as [`Self::answers`], and passes every event to `on_event` as it arrives.
    ///
    /// # Errors
    /// The same as for [`Self::answers`].
    pub async fn gather(mut self, mut on_event: impl FnMut(&TextEvent)) -> Result<Vec<Sample>, Error> {
        let mut gathered = Gathered::new(self.n_samples());
        while let Some(event) = self.next_event().await {
            on_event(&event);
            gathered.take(event)?;
        }
        gathered.samples()
    }

    /// Waits on this thread for every sample, and passes on each piece as it arrives.
    ///
    /// # Errors
    /// The same as for [`Self::answers`], and the error of `on_piece`, which cancels all samples.
    pub fn read<E: From<Error>>(
        mut self,
        mut on_piece: impl FnMut(&Delta) -> Result<(), E>,
    ) -> Result<Vec<Answer>, E> {
        let mut gathered = Gathered::new(self.n_samples());
        while let Some(event) = wait(|context| self.poll_event(context)) {
            if let TextEvent::Delta(delta) = &event {
                on_piece(delta)?;
            }
            gathered.take(event)?;
        }
        Ok(gathered.answers()?)
    }
}

/// Collects the events of each sample so far, for callers that read a stream themselves.
#[derive(Debug)]
pub struct Gathered(Vec<SoFar>);

#[derive(Clone, Debug, Default)]
struct SoFar {
    text: String,
    reasoning: String,
    calls: Vec<ToolCall>,
    /// The call that is not complete.
    open: ToolCall,
    /// The call that will not be.
    cut_call: Option<ToolCall>,
    tokens: Vec<ScoredToken>,
    end: Option<TextEnd>,
}

impl SoFar {
    fn take(&mut self, part: Part) {
        match part {
            Part::Text(text) => self.text.push_str(&text),
            Part::Reasoning(text) => self.reasoning.push_str(&text),
            Part::CallStart { id, name, .. } => {
                self.open = ToolCall {
                    id: id.unwrap_or_default(),
                    name,
                    arguments: String::new(),
                };
            }
            Part::Arguments { delta, .. } => self.open.arguments.push_str(&delta),
            Part::CallEnd { .. } => self.calls.push(std::mem::take(&mut self.open)),
            Part::CallCut { .. } => self.cut_call = Some(std::mem::take(&mut self.open)),
            // It is not a call, so its text is text.
            Part::CallBroken { source, .. } => self.text.push_str(&source),
            Part::Markup => {}
        }
    }
}

impl Gathered {
    /// Nothing yet of `n_samples` samples.
    pub fn new(n_samples: usize) -> Self {
        Self(vec![SoFar::default(); n_samples])
    }

    /// Adds an event of the stream.
    ///
    /// # Errors
    /// Why a sample failed.
    pub fn take(&mut self, event: TextEvent) -> Result<(), Error> {
        match event {
            TextEvent::Delta(delta) => {
                let sample = &mut self.0[delta.sample as usize];
                sample.tokens.extend(delta.tokens);
                delta.parts.into_iter().for_each(|part| sample.take(part));
            }
            TextEvent::Finished(end) => {
                let sample = end.sample as usize;
                self.0[sample].end = Some(end);
            }
            TextEvent::Prefill(_) => {}
            TextEvent::Failed { error, .. } => return Err(error.into()),
        }
        Ok(())
    }

    /// The answers, in the order of the samples.
    ///
    /// # Errors
    /// [`EngineError::Stopped`] where a sample has no end.
    pub fn answers(self) -> Result<Vec<Answer>, Error> {
        Ok(self.samples()?.into_iter().map(Answer::from).collect())
    }

    fn samples(self) -> Result<Vec<Sample>, Error> {
        let sample = |so_far: SoFar| {
            Ok(Sample {
                end: so_far.end.ok_or(EngineError::Stopped)?,
                text: so_far.text,
                reasoning: so_far.reasoning,
                calls: so_far.calls,
                cut_call: so_far.cut_call,
                tokens: so_far.tokens,
            })
        };
        self.0.into_iter().map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_cut_has_the_arguments_that_are_whole() {
        let check = |arguments: &str, expected: Value| {
            let call = ToolCall {
                arguments: arguments.to_owned(),
                ..ToolCall::default()
            };
            assert_eq!(Value::Object(call.whole_arguments()), expected, "{arguments}");
        };
        check(r#"{"x": 3, "y": 4}"#, json!({"x": 3, "y": 4}));
        check(r#"{"x": 3, "y": 4"#, json!({"x": 3}));
        check(r#"{"x": 3, ""#, json!({"x": 3}));
        check(r#"{"x": 3"#, json!({}));
        check(r#"{"a": "b,\", {", "c": {"d": 1, "e"#, json!({"a": "b,\", {"}));
        check(r#"{"a": [1, 2], "b": [3, "#, json!({"a": [1, 2]}));
        check("", json!({}));
        check("{", json!({}));
    }
}
