//! Reads answers that are a sequence of messages, each with a head that names its recipient.
//!
//! gpt-oss writes `<|channel|>analysis<|message|>...<|end|>`, Functionary `>>>all\n...`. Here text and reasoning have heads too, and the
//! prompt ends inside the first. Invariants: a message without a known recipient is text; the words of gpt-oss's heads never are.

use super::{
    Calls, Part, find_first,
    json_scanner::{JsonScanner, Scan},
    partial_len, space_len,
};

/// Describes how a family writes messages.
#[derive(Debug)]
pub(super) struct ChannelShape {
    /// Begins a head.
    pub(super) opener: &'static str,
    /// Ends a head.
    pub(super) head_end: &'static str,
    /// End marks of a message.
    pub(super) closers: &'static [&'static str],
    /// Says how a head routes its message.
    pub(super) family: ChannelFamily,
}

/// The families that write messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelFamily {
    /// gpt-oss: channels, and recipients of calls.
    Harmony,
    /// A head is a tool, or `all` for the reader.
    Functionary,
}

/// Recipient of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route<'t> {
    /// To the reader.
    Text,
    /// To the model itself.
    Reasoning,
    /// To a tool of this name.
    Call(&'t str),
}

/// Longest head.
const MAX_HEAD_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Text,
    Reasoning,
    /// Before the first byte of arguments.
    BeforeArguments,
    Arguments,
    /// After arguments, before the next message.
    AfterArguments,
}

/// The result of a step of the channels.
pub(super) enum Flow {
    /// This many bytes are this part.
    Part(Part, usize),
    /// This many bytes belonged to a call, whose parts are in [`Calls`].
    Call(usize),
    /// More text is needed to continue.
    Wait,
    /// The open call does not continue like one.
    Broken,
}

/// Reads messages.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    pub(super) shape: &'static ChannelShape,
    state: State,
    scanner: JsonScanner,
    /// Route of messages to the reader before the answer.
    preamble: Route<'static>,
}

/// Mark inside the heads of gpt-oss.
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";

impl Channels {
    /// Begins inside a head if the prompt ends with the beginning of one, otherwise in a text.
    pub(super) fn new(shape: &'static ChannelShape, begins_in_head: bool) -> Self {
        Self {
            shape,
            state: if begins_in_head { State::Head } else { State::Text },
            scanner: JsonScanner::new(),
            preamble: Route::Text,
        }
    }

    pub(super) fn preambles_are_reasoning(&mut self) {
        self.preamble = Route::Reasoning;
    }

    /// Lists the control tokens of this shape.
    pub(super) fn controls(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        let controls: &[&str] = match self.shape.family {
            ChannelFamily::Harmony => &[
                "<|start|>",
                CHANNEL,
                CONSTRAIN,
                "<|message|>",
                "<|end|>",
                "<|call|>",
                "<|return|>",
            ],
            ChannelFamily::Functionary => &[],
        };
        controls.iter().copied()
    }

    /// Lists the marks in answers of this shape.
    pub(super) fn marks(&self) -> impl Iterator<Item = &'static str> {
        [self.shape.opener, self.shape.head_end]
            .into_iter()
            .chain(self.shape.closers.iter().copied())
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Continues after an open call that is not a call.
    pub(super) fn end_call(&mut self) {
        self.state = State::Text;
    }

    pub(super) fn step(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Flow {
        if text.is_empty() {
            return Flow::Wait;
        }
        match self.state {
            State::Head => self.head(text, is_last, calls),
            State::Text => self.message(text, is_last, Part::Text),
            State::Reasoning => self.message(text, is_last, Part::Reasoning),
            State::BeforeArguments => {
                let space = space_len(text);
                match text[space..].chars().next() {
                    None => Flow::Wait,
                    Some('{') => {
                        self.state = State::Arguments;
                        Flow::Call(space)
                    }
                    Some(_) => self.break_off(),
                }
            }
            State::Arguments => {
                let mut json = String::new();
                let (n, scan) = self.scanner.feed(text, is_last, &mut json);
                calls.arguments(json);
                match scan {
                    Scan::Invalid if n == 0 => return self.break_off(),
                    Scan::Done => {
                        calls.end();
                        self.state = State::AfterArguments;
                    }
                    Scan::Invalid | Scan::More => {}
                }
                Flow::Call(n)
            }
            State::AfterArguments => {
                let space = space_len(text);
                if space == text.len() {
                    return if is_last {
                        Flow::Part(Part::Markup, space)
                    } else {
                        Flow::Wait
                    };
                }
                self.state = State::Text;
                Flow::Part(Part::Markup, space)
            }
        }
    }

    fn break_off(&mut self) -> Flow {
        self.state = State::Text;
        Flow::Broken
    }

    fn head(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Flow {
        let shape = self.shape;
        // A model may leave out the opening of a head.
        let opener = if text.starts_with(shape.opener) {
            shape.opener.len()
        } else if !is_last && shape.opener.starts_with(text) {
            return Flow::Wait;
        } else {
            0
        };
        let rest = &text[opener..];
        let Some(at) = rest.find(shape.head_end).filter(|&at| at <= MAX_HEAD_BYTES) else {
            let may_come =
                rest.len() <= MAX_HEAD_BYTES + shape.head_end.len() && !rest.contains(shape.head_end);
            if may_come && !is_last {
                return Flow::Wait;
            }
            if may_come && self.is_begun_head(opener, rest) {
                // The answer ends inside the head.
                return Flow::Part(Part::Markup, text.len());
            }
            return self.no_head(text, opener);
        };
        let n = opener + at + shape.head_end.len();
        let head = rest[..at].trim();
        match shape.family.route(head) {
            Some(Route::Text) if head.contains("final") => self.state = State::Text,
            Some(Route::Text) => self.go_to(self.preamble),
            Some(Route::Reasoning) => self.state = State::Reasoning,
            Some(Route::Call(name)) if calls.tools.contains(name) => {
                calls.start(name, None);
                self.scanner = JsonScanner::new();
                self.state = State::BeforeArguments;
                return Flow::Call(n);
            }
            // An unknown tool or channel goes to the reader, or to reasoning if the channel is `analysis`.
            _ if shape.family == ChannelFamily::Harmony => {
                let is_thought = head.contains("<|channel|>analysis");
                self.go_to(if is_thought { Route::Reasoning } else { Route::Text });
            }
            // The tool was not offered, or the head consists of words.
            _ => return self.no_head(text, opener),
        }
        Flow::Part(Part::Markup, n)
    }

    fn go_to(&mut self, route: Route<'_>) {
        self.state = match route {
            Route::Reasoning => State::Reasoning,
            Route::Text | Route::Call(_) => State::Text,
        };
    }

    /// Returns whether a text without the end of a head can still be the beginning of one.
    fn is_begun_head(&self, n_opener: usize, rest: &str) -> bool {
        let is_harmony = self.shape.family == ChannelFamily::Harmony;
        is_harmony && (n_opener > 0 || rest.contains(CHANNEL) || rest.trim_start().starts_with("to="))
    }

    /// Treats a supposed head as text, up to the place where another may begin.
    fn no_head(&mut self, text: &str, opener: usize) -> Flow {
        self.state = State::Text;
        let n = match opener {
            0 => text.chars().next().map_or(0, char::len_utf8),
            n => n,
        };
        // A control token at the start is not part of a head here.
        if let Some(mark) = self.controls().find(|mark| text.starts_with(mark)) {
            return Flow::Part(Part::Markup, mark.len());
        }
        Flow::Part(Part::Text(text[..n].to_owned()), n)
    }

    fn message(&mut self, text: &str, is_last: bool, part: fn(String) -> Part) -> Flow {
        let shape = self.shape;
        let controls = self.controls();
        let marks = || {
            shape
                .closers
                .iter()
                .copied()
                .chain([shape.opener])
                .chain(controls.clone())
        };
        let at = match find_first(text, marks()) {
            Some((0, mark)) if mark == shape.opener || mark == CHANNEL => {
                self.state = State::Head;
                // The head is read in the next step.
                return Flow::Part(Part::Markup, 0);
            }
            Some((0, mark)) => return Flow::Part(Part::Markup, mark.len()),
            Some((at, _)) => at,
            None if is_last => text.len(),
            None => text.len() - partial_len(text, marks()),
        };
        if at == 0 {
            return Flow::Wait;
        }
        Flow::Part(part(text[..at].to_owned()), at)
    }
}

impl ChannelFamily {
    /// Returns the recipient of a message with this head.
    fn route(self, head: &str) -> Option<Route<'_>> {
        match (self, head) {
            (Self::Harmony, head) => harmony_route(head),
            (Self::Functionary, "all") => Some(Route::Text),
            (Self::Functionary, name) => Some(Route::Call(name)),
        }
    }
}

/// Parses the head of a message: a channel, and a recipient if it is a call.
fn harmony_route(head: &str) -> Option<Route<'_>> {
    let recipient = head.split_once("to=").map(|(_, rest)| {
        rest.split(|c: char| c.is_whitespace() || c == '<')
            .next()
            .unwrap_or_default()
    });
    if let Some(recipient) = recipient
        && recipient != "assistant"
    {
        return Some(Route::Call(
            recipient.strip_prefix("functions.").unwrap_or(recipient),
        ));
    }
    let channel = head.split_once("<|channel|>")?.1;
    match channel.split_whitespace().next()? {
        "analysis" => Some(Route::Reasoning),
        "final" | "commentary" => Some(Route::Text),
        _ => None,
    }
}
