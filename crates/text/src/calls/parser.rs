//! [`ReplyParser`]: splits an answer, piece by piece, into parts.
//!
//! It handles what all formats share: the end of reasoning, possible beginnings of calls, and text that turns out to be neither. Invariant:
//! each byte of the answer is in one piece, in order; text and reasoning are delivered byte for byte.

use std::sync::Arc;

use super::{
    Calls, Found, Part, Piece, ReplyFormat, Step, ToolSet, begins_with, begins_with_any,
    channels::{Channels, Flow},
    find_first,
    format::Shape,
    json_body::JsonBody,
    literal_body::LiteralBody,
    marks::openers_of,
    named_body::NamedBody,
    partial_len, space_len,
    tagged_body::TaggedBody,
    thought::{Thought, split_at_controls, without_controls},
};

/// Describes the start of an answer, which its prompt decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The prompt opened the reasoning.
    pub is_reasoning: bool,
    /// The prompt ends inside the head of a message.
    pub is_head: bool,
}

/// Reads an answer.
///
/// ```
/// use tokenmill_text::calls::{Opening, Part, ReplyFormat, ReplyParser, ToolSet};
///
/// let format = ReplyFormat::of_template("... <tool_call> ... <think> ...");
/// let tools = ToolSet::new([("add".to_owned(), serde_json::json!({}))]);
/// let mut parser = ReplyParser::new(&format, tools.into(), Opening::default());
/// let mut parts = parser.push("<think>Hm</think>Adding. <tool_call>{\"name\": \"add\", \"argu");
/// parts.extend(parser.push("ments\": {\"a\": 1}}</tool_call>"));
/// parts.extend(parser.finish());
/// let parts: Vec<Part> = parts.into_iter().map(|piece| piece.part).filter(|part| *part != Part::Markup).collect();
/// assert_eq!(parts[0], Part::Reasoning("Hm".into()));
/// assert_eq!(parts[1], Part::Text("Adding.".into()));
/// assert_eq!(parts[2], Part::CallStart { call_idx: 0, id: None, name: "add".into() });
/// assert_eq!(parts[3], Part::Arguments { call_idx: 0, delta: "{\"a\": 1}".into() });
/// assert_eq!(parts[4], Part::CallEnd { call_idx: 0 });
/// ```
#[derive(Clone, Debug)]
pub struct ReplyParser {
    pub(super) format: ReplyFormat,
    phase: Phase,
    pub(super) calls: Calls,
    /// Text that is in no piece yet.
    pub(super) held: String,
    /// Bytes that a call's parser has read.
    n_read: usize,
    /// The text of the open call.
    source: String,
    /// Whether only space came since the last call or mark.
    is_after_mark: bool,
    pub(super) channels: Option<Channels>,
    /// Marks that begin calls; none if no tools are offered.
    pub(super) openers: Vec<&'static str>,
    place: Place,
    /// A possible call in the reasoning, from its opening mark.
    pub(super) thought: Option<Thought>,
    /// Texts of control tokens, which are removed from the answer.
    pub(super) controls: Arc<[String]>,
}

/// Says where the first call may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Anywhere,
    /// Where the text begins.
    Start,
    /// Nowhere: the text has begun without a call.
    Nowhere,
}

#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a parser has one, and is in its body most of the time"
)]
enum Phase {
    /// Only space came, of the answer or after the reasoning.
    Start {
        may_think: bool,
    },
    /// In the reasoning. `is_fresh`: only space of it came.
    Reasoning {
        is_fresh: bool,
    },
    Text,
    Body(Body),
    Channels,
}

#[derive(Clone, Debug)]
enum Body {
    Json(JsonBody),
    Named(NamedBody),
    Tagged(TaggedBody),
    Literal(LiteralBody),
}

impl Body {
    fn step(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Step {
        match self {
            Self::Json(body) => body.step(text, is_last, calls),
            Self::Named(body) => body.step(text, is_last, calls),
            Self::Tagged(body) => body.step(text, is_last, calls),
            Self::Literal(body) => body.step(text, is_last, calls),
        }
    }

    /// Ends where a limit cut the answer. Returns whether the text before it belongs to a call: a call is open, or one has ended and only
    /// marks came since.
    fn cut(&mut self, calls: &mut Calls) -> bool {
        if let Self::Json(body) = self {
            body.begin_named(calls);
        }
        calls.is_open
            || match self {
                Self::Json(body) => body.is_after_call(),
                Self::Named(body) => body.is_after_call(),
                Self::Tagged(body) => body.is_after_call(),
                Self::Literal(body) => body.is_after_call(),
            }
    }
}

impl ReplyParser {
    /// Reads an answer of a model that writes in `format` and was offered `tools`. Without tools, nothing is a call.
    pub fn new(format: &ReplyFormat, tools: Arc<ToolSet>, opening: Opening) -> Self {
        let channels = match format.calls.shape {
            Shape::Channels(shape) => Some(Channels::new(shape, opening.is_head)),
            _ => None,
        };
        let phase = match (&channels, opening.is_reasoning) {
            (Some(_), _) => Phase::Channels,
            (None, true) => Phase::Reasoning { is_fresh: true },
            (None, false) => Phase::Start { may_think: true },
        };
        let openers = if tools.is_empty() {
            Vec::new()
        } else {
            openers_of(format.calls.shape)
        };
        Self {
            openers,
            format: *format,
            phase,
            calls: Calls {
                tools,
                news: Vec::new(),
                call_idx: 0,
                is_open: false,
            },
            held: String::new(),
            n_read: 0,
            source: String::new(),
            is_after_mark: false,
            controls: (channels.iter().flat_map(Channels::controls))
                .map(str::to_owned)
                .collect(),
            channels,
            place: Place::Anywhere,
            thought: None,
        }
    }

    /// Treats the texts of control tokens as marks, wherever they appear.
    #[must_use]
    pub fn dropping(mut self, controls: &[String]) -> Self {
        self.controls = self.controls.iter().chain(controls).cloned().collect();
        self
    }

    /// Treats messages to the reader before the answer as reasoning, in formats whose answers are messages with heads. Answers with a shape
    /// need this, because such messages are not part of the shape.
    #[must_use]
    pub fn preambles_are_reasoning(mut self) -> Self {
        if let Some(channels) = &mut self.channels {
            channels.preambles_are_reasoning();
        }
        self
    }

    /// Accepts only calls at the start of the text, and calls after those. This is for answers that are either calls or a text of a
    /// shape, in which marks of calls are text.
    #[must_use]
    pub fn calls_at_start(mut self) -> Self {
        self.place = Place::Start;
        self
    }

    /// Returns whether the answer is in its reasoning.
    pub fn is_reasoning(&self) -> bool {
        match &self.channels {
            Some(channels) => channels.is_reasoning(),
            None => matches!(self.phase, Phase::Reasoning { .. }),
        }
    }

    /// Takes the next piece of the answer; returns the parts that are certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut out = Vec::new();
        self.run(false, &mut out);
        out
    }

    /// Ends an answer that a limit cut; returns the text that was held back. A call whose name is known stays a call, with the arguments so
    /// far.
    pub fn cut(&mut self) -> Vec<Piece> {
        // Reasoning that was cut off would have continued.
        if self.thought.take_if(|thought| !thought.is_whole()).is_some() {
            let mut out = Vec::new();
            let n_text = self.held.trim_end().len();
            self.emit(Part::Reasoning(self.held[..n_text].to_owned()), n_text, &mut out);
            self.emit(Part::Markup, self.held.len(), &mut out);
            return out;
        }
        let is_of_call = match &mut self.phase {
            Phase::Body(body) => body.cut(&mut self.calls),
            _ => self.calls.is_open,
        };
        let mut out = Vec::new();
        if is_of_call {
            if self.calls.is_open {
                self.calls.cut_off();
                self.n_read = self.held.len();
                self.flush_calls(&mut out);
            } else {
                self.n_read = 0;
                self.emit(Part::Markup, self.held.len(), &mut out);
            }
            match &mut self.channels {
                Some(channels) => channels.end_call(),
                None => self.phase = Phase::Text,
            }
        }
        out.extend(self.finish());
        out
    }

    /// Ends the answer where the model did; returns the text that was held back. An incomplete call is broken.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut out = Vec::new();
        self.run(true, &mut out);
        debug_assert!(self.held.is_empty(), "an answer's end leaves nothing");
        out
    }

    fn run(&mut self, is_last: bool, out: &mut Vec<Piece>) {
        loop {
            let goes_on = match &self.phase {
                Phase::Start { may_think } => self.start(*may_think, is_last, out),
                Phase::Reasoning { is_fresh } => self.reasoning(*is_fresh, is_last, out),
                Phase::Text => self.text(is_last, out),
                Phase::Body(_) => self.body(is_last, out),
                Phase::Channels => self.message(is_last, out),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Handles the start, before anything but space.
    fn start(&mut self, may_think: bool, is_last: bool, out: &mut Vec<Piece>) -> bool {
        let space = space_len(&self.held);
        let rest = &self.held[space..];
        if rest.is_empty() {
            if is_last {
                self.phase = Phase::Text;
            }
            return is_last;
        }
        if may_think && let Some(tags) = self.format.thinking {
            match begins_with(rest, tags.open, is_last) {
                Found::Yes => {
                    self.emit(Part::Markup, space + tags.open.len(), out);
                    self.phase = Phase::Reasoning { is_fresh: true };
                    return true;
                }
                Found::Unknown => return false,
                Found::No => {}
            }
            // No thoughts at all.
            match begins_with(rest, tags.close, is_last) {
                Found::Yes => {
                    self.emit(Part::Markup, space + tags.close.len(), out);
                    self.phase = Phase::Start { may_think: false };
                    self.is_after_mark = true;
                    return true;
                }
                Found::Unknown => return false,
                Found::No => {}
            }
        }
        self.phase = Phase::Text;
        if self.calls.tools.is_empty() {
            return true;
        }
        if let Shape::JsonOrLiteral(json, calls) = self.format.calls.shape {
            let inner = rest.strip_prefix('[').map(str::trim_start);
            let body = match (rest.chars().next(), inner.and_then(|inner| inner.chars().next())) {
                (Some('{'), _) | (Some('['), Some('{')) => Body::Json(JsonBody::new(json)),
                (Some('['), Some(c)) if c.is_alphabetic() || c == '_' => {
                    Body::Literal(LiteralBody::new(calls))
                }
                (Some('['), None) if !is_last => {
                    self.phase = Phase::Start { may_think };
                    return false;
                }
                _ => return true,
            };
            self.n_read = space;
            self.phase = Phase::Body(body);
        }
        true
    }

    fn reasoning(&mut self, is_fresh: bool, is_last: bool, out: &mut Vec<Piece>) -> bool {
        let Some(tags) = self.format.thinking else {
            self.phase = Phase::Text;
            return true;
        };
        if is_fresh {
            let space = space_len(&self.held);
            let rest = &self.held[space..];
            if rest.is_empty() && !is_last {
                return false;
            }
            match begins_with(rest, tags.open, is_last) {
                // The model repeats the end of the prompt.
                Found::Yes => self.emit(Part::Markup, space + tags.open.len(), out),
                Found::Unknown => return false,
                Found::No => {
                    self.emit(Part::Markup, space, out);
                    self.phase = Phase::Reasoning { is_fresh: false };
                }
            }
            return true;
        }
        let found = self.held.find(tags.close);
        if found.is_none()
            && let Some(goes_on) = self.think_of_call(is_last, out)
        {
            return goes_on;
        }
        self.thought = None;
        let end = match found {
            Some(at) => at,
            None if is_last => self.held.len(),
            None => self.held.len() - partial_len(&self.held, self.all_marks().chain([tags.close])),
        };
        let text = self.held[..end].trim_end().to_owned();
        let (n_text, n_held) = (text.len(), self.held.len());
        self.emit(Part::Reasoning(text), n_text, out);
        if let Some(at) = found {
            self.emit(Part::Markup, at - n_text + tags.close.len(), out);
            self.phase = Phase::Start { may_think: false };
            self.is_after_mark = true;
            return true;
        }
        if is_last {
            self.emit(Part::Markup, n_held - n_text, out);
        }
        false
    }

    fn text(&mut self, is_last: bool, out: &mut Vec<Piece>) -> bool {
        if self.is_after_mark {
            let space = space_len(&self.held);
            let is_all = space == self.held.len();
            if is_all && !is_last {
                return false;
            }
            self.emit(Part::Markup, space, out);
            if is_all {
                return false;
            }
        }
        if self.place == Place::Start && self.calls.call_idx == 0 {
            let marks: Vec<&str> = (self.openers.iter().chain(self.format.calls.wrappers).copied()).collect();
            match begins_with_any(self.held.trim_start(), &marks, is_last).0 {
                Found::Yes => {}
                Found::Unknown => return false,
                Found::No => self.place = Place::Nowhere,
            }
        }
        if self.place == Place::Nowhere {
            let n_text = self.held.len();
            self.emit_text(n_text, out);
            return false;
        }
        let marks = || self.openers.iter().chain(self.format.calls.wrappers).copied();
        let Some((at, mark)) = find_first(&self.held, marks()) else {
            let mut n_sure = self.held.len();
            if !is_last {
                n_sure -= partial_len(&self.held, self.all_marks());
                // Space before a call belongs to the call.
                if !self.openers.is_empty() {
                    n_sure = self.held[..n_sure].trim_end().len();
                }
            }
            self.emit_text(n_sure, out);
            return false;
        };
        if !self.openers.contains(&mark) {
            self.emit_text(at, out);
            self.emit(Part::Markup, mark.len(), out);
            self.is_after_mark = true;
            return true;
        }
        let n_text = self.held[..at].trim_end().len();
        self.emit_text(n_text, out);
        self.n_read = at - n_text + mark.len();
        self.phase = match self.format.calls.shape {
            Shape::Json(shape) | Shape::JsonOrLiteral(shape, _) => {
                Phase::Body(Body::Json(JsonBody::new(shape)))
            }
            Shape::Named(shape) => Phase::Body(Body::Named(NamedBody::new(shape, mark))),
            Shape::Tagged(shape) => Phase::Body(Body::Tagged(TaggedBody::new(shape, mark))),
            Shape::Literal(shape) => Phase::Body(Body::Literal(LiteralBody::new(shape))),
            Shape::Channels(_) => Phase::Channels,
        };
        true
    }

    fn body(&mut self, is_last: bool, out: &mut Vec<Piece>) -> bool {
        let Phase::Body(body) = &mut self.phase else {
            return false;
        };
        match body.step(&self.held[self.n_read..], is_last, &mut self.calls) {
            Step::Took(n) => {
                self.n_read += n;
                self.flush_calls(out);
            }
            Step::Done(n) => {
                self.n_read += n;
                self.flush_calls(out);
                let n = std::mem::take(&mut self.n_read);
                self.emit(Part::Markup, n, out);
                self.phase = Phase::Text;
                self.is_after_mark = true;
            }
            Step::Wait if !is_last => return false,
            Step::Wait | Step::Broken => self.break_off(out),
        }
        true
    }

    fn message(&mut self, is_last: bool, out: &mut Vec<Piece>) -> bool {
        let Some(channels) = &mut self.channels else {
            return false;
        };
        match channels.step(&self.held, is_last, &mut self.calls) {
            Flow::Part(part, n) => self.emit(part, n, out),
            Flow::Call(n) => {
                self.n_read = n;
                self.flush_calls(out);
            }
            Flow::Wait if is_last && self.calls.is_open => {
                channels.end_call();
                self.break_off(out);
            }
            Flow::Wait => return false,
            Flow::Broken => self.break_off(out),
        }
        true
    }

    /// Lists the marks that may follow text directly.
    fn all_marks(&self) -> impl Iterator<Item = &str> {
        let fixed = self.openers.iter().chain(self.format.calls.wrappers).copied();
        fixed.chain(self.controls.iter().map(String::as_str))
    }

    /// Ends a call that is not one, or does not continue like one: its text becomes text of the answer.
    fn break_off(&mut self, out: &mut Vec<Piece>) {
        let n_read = std::mem::take(&mut self.n_read);
        if self.calls.is_open {
            debug_assert_eq!(n_read, 0, "what was read of an open call was given");
            let source = std::mem::take(&mut self.source);
            self.calls.break_off(without_controls(source, &self.controls));
            out.extend(self.calls.news.drain(..).map(|part| Piece {
                part,
                source_bytes: 0,
            }));
        } else {
            self.emit_text(n_read, out);
        }
        self.is_after_mark = false;
        if self.channels.is_none() {
            self.phase = Phase::Text;
        }
    }

    /// Delivers the certain parts of a call, with the text that they were read from.
    fn flush_calls(&mut self, out: &mut Vec<Piece>) {
        if self.calls.news.is_empty() && !self.calls.is_open {
            return;
        }
        let n_read = std::mem::take(&mut self.n_read);
        self.source.extend(self.held.drain(..n_read));
        let mut news = std::mem::take(&mut self.calls.news);
        if news.is_empty() && n_read > 0 {
            news.push(Part::Markup);
        }
        let last = news.len().saturating_sub(1);
        out.extend(news.into_iter().enumerate().map(|(idx, part)| Piece {
            part,
            source_bytes: if idx == last { n_read } else { 0 },
        }));
        if !self.calls.is_open {
            self.source.clear();
        }
    }

    fn emit_text(&mut self, n_bytes: usize, out: &mut Vec<Piece>) {
        if n_bytes > 0 {
            self.is_after_mark = false;
            self.emit(Part::Text(self.held[..n_bytes].to_owned()), n_bytes, out);
        }
    }

    /// Creates a parser for possible calls in reasoning.
    pub(super) fn of_calls(&self) -> Self {
        let mut parser = Self::new(&self.format, Arc::clone(&self.calls.tools), Opening::default());
        parser.phase = Phase::Text;
        parser.calls.call_idx = self.calls.call_idx;
        parser.controls = Arc::clone(&self.controls);
        parser
    }

    /// Ends the reasoning with the answer.
    pub(super) fn end_reasoning(&mut self, call_idx: usize) {
        self.held.clear();
        self.calls.call_idx = call_idx;
        self.phase = Phase::Text;
    }

    pub(super) fn emit(&mut self, part: Part, source_bytes: usize, out: &mut Vec<Piece>) {
        if source_bytes == 0 {
            return;
        }
        let as_part: fn(String) -> Part = match part {
            Part::Text(_) if !self.controls.is_empty() => Part::Text,
            Part::Reasoning(_) if !self.controls.is_empty() => Part::Reasoning,
            _ => {
                self.held.drain(..source_bytes);
                out.push(Piece { part, source_bytes });
                return;
            }
        };
        let text: String = self.held.drain(..source_bytes).collect();
        split_at_controls(&text, &self.controls, as_part, out);
    }
}
