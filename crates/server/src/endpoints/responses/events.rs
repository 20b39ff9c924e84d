//! [`ResponseEvents`]: a response as a stream of events.
//!
//! It writes the items of a response part by part. Invariant: each item begins, grows and ends before the
//! next one begins.

use serde_json::{Value, json};
use tokenmill::{
    ToolCall,
    stream::{ScoredToken, TextEnd, TextEvent},
    tools::Part,
};
use tokenmill_sched::FinishReason;

use super::{ItemKind, OutputItem, ResponseWriter};
use crate::{
    ApiError, Dialect,
    answers::sse::{EventFormat, Events},
    telemetry::request_id::RequestId,
};

/// Writes the events of a response.
pub(super) struct ResponseEvents {
    writer: ResponseWriter,
    items: Vec<OutputItem>,
    tokens: Vec<ScoredToken>,
    end: Option<TextEnd>,
    sequence: u64,
}

impl ResponseEvents {
    /// Creates the format of a stream that has not begun.
    pub(super) fn new(writer: ResponseWriter) -> Self {
        Self {
            writer,
            items: Vec::new(),
            tokens: Vec::new(),
            end: None,
            sequence: 0,
        }
    }

    /// Sends an event with its type and its number.
    fn send(&mut self, out: &mut Events, name: &str, mut data: Value) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        out.named(name, &data);
    }

    /// The place of the newest item.
    fn placed(&self, mut data: Value) -> Value {
        if let Some(item) = self.items.last() {
            data["item_id"] = json!(item.id);
            data["output_index"] = json!(self.items.len() - 1);
            if item.kind != ItemKind::Call {
                data["content_index"] = json!(0);
            }
        }
        data
    }

    /// Begins an item, unless one of its kind is open. Calls begin each on its own.
    fn open(&mut self, item: OutputItem, out: &mut Events) {
        let is_open =
            |last: &OutputItem| !last.is_done && last.kind == item.kind && item.kind != ItemKind::Call;
        if self.items.last().is_some_and(is_open) {
            return;
        }
        self.close(out);
        let kind = item.kind;
        let value = self.writer.item(&item, "in_progress", &[]);
        let data = json!({ "output_index": self.items.len(), "item": value });
        self.items.push(item);
        self.send(out, "response.output_item.added", data);
        let part = match kind {
            ItemKind::Message => self.writer.part("", &[]),
            ItemKind::Reasoning => json!({ "type": "reasoning_text", "text": "" }),
            ItemKind::Call => return,
        };
        let part = self.placed(json!({ "part": part }));
        self.send(out, "response.content_part.added", part);
    }

    /// Notes that the limit of tokens came within the newest item, if it is open.
    fn cut(&mut self) {
        if let Some(item) = self.items.last_mut().filter(|item| !item.is_done) {
            item.is_cut = true;
        }
    }

    /// Ends the newest item, if it is open.
    fn close(&mut self, out: &mut Events) {
        let Some(item) = self.items.last_mut().filter(|item| !item.is_done) else {
            return;
        };
        item.is_done = true;
        let item = item.clone();
        match item.kind {
            ItemKind::Message => {
                let part = self.writer.part(&item.text, &self.tokens);
                let text = self.placed(json!({ "text": item.text, "logprobs": part["logprobs"] }));
                self.send(out, "response.output_text.done", text);
                let done = self.placed(json!({ "part": part }));
                self.send(out, "response.content_part.done", done);
            }
            ItemKind::Reasoning => {
                let text = self.placed(json!({ "text": item.text }));
                self.send(out, "response.reasoning_text.done", text);
                let done = self.placed(json!({ "part": { "type": "reasoning_text", "text": item.text } }));
                self.send(out, "response.content_part.done", done);
            }
            ItemKind::Call => {
                let done = self.placed(json!({ "name": item.call.name, "arguments": item.text }));
                self.send(out, "response.function_call_arguments.done", done);
            }
        }
        let value = self.writer.item(&item, item.status(), &self.tokens);
        let data = json!({ "output_index": self.items.len() - 1, "item": value });
        self.send(out, "response.output_item.done", data);
    }

    /// Adds to the newest item.
    fn extend(&mut self, event: &str, more: &str, mut data: Value, out: &mut Events) {
        if let Some(item) = self.items.last_mut() {
            item.text.push_str(more);
        }
        data["delta"] = json!(more);
        let data = self.placed(data);
        self.send(out, event, data);
    }

    fn part(&mut self, part: &Part, logprobs: &mut Value, out: &mut Events) {
        match part {
            Part::Text(text) => {
                self.open(OutputItem::new(ItemKind::Message, ""), out);
                let data = json!({ "logprobs": logprobs.take() });
                self.extend("response.output_text.delta", text, data, out);
                *logprobs = json!([]);
            }
            Part::Reasoning(text) => {
                self.open(OutputItem::new(ItemKind::Reasoning, ""), out);
                self.extend("response.reasoning_text.delta", text, json!({}), out);
            }
            Part::CallStart { id, name, .. } => {
                let call = ToolCall {
                    id: id.clone().unwrap_or_default(),
                    name: name.clone(),
                    arguments: String::new(),
                };
                self.open(OutputItem::of_call(&call), out);
            }
            Part::Arguments { delta, .. } => {
                self.extend("response.function_call_arguments.delta", delta, json!({}), out);
            }
            Part::CallCut { .. } => {
                self.cut();
                self.close(out);
            }
            // A broken call is text.
            Part::CallBroken { source, .. } => {
                self.cut();
                self.close(out);
                self.part(&Part::Text(source.clone()), logprobs, out);
            }
            Part::CallEnd { .. } => self.close(out),
            Part::Markup => {}
        }
    }
}

impl EventFormat for ResponseEvents {
    fn begin(&mut self, out: &mut Events) {
        let started = json!({ "response": self.writer.envelope("in_progress", &json!([])) });
        self.send(out, "response.created", started.clone());
        self.send(out, "response.in_progress", started);
    }

    fn take(&mut self, event: &TextEvent, out: &mut Events) {
        match event {
            TextEvent::Delta(delta) => {
                self.tokens.extend_from_slice(&delta.tokens);
                let mut logprobs = self.writer.part("", &delta.tokens)["logprobs"].take();
                for part in &delta.parts {
                    self.part(part, &mut logprobs, out);
                }
            }
            TextEvent::Finished(end) => self.end = Some(end.clone()),
            TextEvent::Prefill(_) | TextEvent::Failed { .. } => {}
        }
    }

    fn end(&mut self, out: &mut Events) {
        let Some(end) = self.end.take() else { return };
        if self.items.is_empty() {
            self.open(OutputItem::new(ItemKind::Message, ""), out);
        }
        if end.finished.reason == FinishReason::Length {
            self.cut();
        }
        self.close(out);
        let whole = self.writer.whole(&self.items, &self.tokens, &end);
        let name = if whole["status"] == "completed" {
            "response.completed"
        } else {
            "response.incomplete"
        };
        self.send(out, name, json!({ "response": whole }));
    }

    fn fail(&mut self, error: &ApiError, request_id: &RequestId, out: &mut Events) {
        let mut failed = self.writer.envelope("failed", &json!([]));
        failed["error"] = error.body(Dialect::OpenAi, request_id.as_str())["error"].take();
        self.send(out, "response.failed", json!({ "response": failed }));
    }
}
