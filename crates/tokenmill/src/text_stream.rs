//! [`TextStream`]: the generations of a request as text.
//!
//! Tokens become text only here: characters are never cut, stop strings end the text of an answer and are never shown, and a token's
//! log-probability is held back as long as its text. Stop strings do not apply to reasoning and calls, which are not part of the answer.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokenmill_backend::TokenLogprob;
use tokenmill_sched::{Canceller, EngineError, Event, FinishReason, Finished, Generation, Prefill, Token};
use tokenmill_text::{
    DecodeOptions, StopMatcher, StreamDecoder, Tokenizer,
    calls::{Part, Piece, ReplyParser},
};

use crate::{Error, reply_reader::ReplyReader, tool_writing::id_of, wait::wait};

/// News of a sample, as text.
#[derive(Clone, Debug, PartialEq)]
pub enum TextEvent {
    /// A part of a prompt was computed; see [`EngineParams::reports_prefill`](crate::text::EngineParams::reports_prefill).
    Prefill(Prefill),
    /// More text; it may be empty when only tokens were released.
    Delta(Delta),
    /// The sample ended; its last text came before.
    Finished(TextEnd),
    /// The sample failed.
    Failed {
        /// The sample.
        sample: u32,
        /// Why.
        error: EngineError,
    },
}

/// More text of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// The sample.
    pub sample: u32,
    /// The text for the reader; reasoning and calls are not part of it.
    pub text: String,
    /// All that is new, in its order: text, reasoning, and calls, each with an id.
    pub parts: Vec<Part>,
    /// The tokens whose text is now out.
    pub tokens: Vec<ScoredToken>,
    /// The token that was sampled, where [`TextStream::telling_tokens`] asks for it. Its text may be held back.
    pub sampled: Option<u32>,
}

/// A token that was sent, with its log-probability if requested.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// The token.
    pub id: u32,
    /// Its log-probability.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place.
    pub top: Vec<TokenLogprob>,
    /// Time since submission, by the clock of the sample's timings; zero for a token of the prompt.
    pub time: Duration,
}

/// The end of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct TextEnd {
    /// The sample.
    pub sample: u32,
    /// The engine's report of it.
    pub finished: Finished,
    /// The stop string that ended it, as its place in the request's list.
    pub stopped_by: Option<usize>,
    /// Tokens of its reasoning.
    pub reasoning_tokens: usize,
    /// Tool calls that are complete.
    pub n_calls: usize,
}

/// The generations of a request as text: one for each prompt, their samples numbered through.
///
/// It is an iterator that waits for each piece; [`Self::into_stream`] makes an asynchronous stream of them for any runtime. Both
/// end after the first error. [`Self::next_event`] also tells when and how each sample ends, and [`Self::answers`] gathers all of it.
/// Dropping the stream cancels unfinished work.
#[derive(Debug)]
pub struct TextStream {
    generations: Vec<Generation>,
    samples_per_prompt: u32,
    samples: Vec<SampleText>,
    ready: VecDeque<TextEvent>,
    has_failed: bool,
    tells_tokens: bool,
    note: Option<Note>,
}

/// Receives the tokens of the first sample.
struct Note(Box<dyn FnMut(u32) + Send>);

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Note")
    }
}

impl TextStream {
    /// Reads `generations`, each of `samples_per_prompt` samples, with `tokenizer`, ending samples at the `stops`.
    pub fn new(
        generations: Vec<Generation>,
        samples_per_prompt: u32,
        tokenizer: &Arc<Tokenizer>,
        stops: &[String],
    ) -> Self {
        let sample = SampleText::new(Arc::clone(tokenizer), stops);
        let samples = vec![sample; generations.len() * samples_per_prompt as usize];
        Self {
            generations,
            samples_per_prompt,
            samples,
            ready: VecDeque::new(),
            has_failed: false,
            tells_tokens: false,
            note: None,
        }
    }

    /// Separates reasoning and tool calls from the text of samples; no token may have been taken yet. With `has_shape` the text has a
    /// shape; if it may be calls instead (`may_be_calls`), marks of calls in it are text.
    pub(crate) fn reading(mut self, reader: &ReplyReader, has_shape: bool, may_be_calls: bool) -> Self {
        for sample in &mut self.samples {
            sample.decoder = sample.decoder.clone().showing(Arc::clone(&reader.shown));
            let mut parser = reader.parser.clone();
            if may_be_calls {
                parser = parser.calls_at_start();
            }
            if has_shape {
                parser = parser.preambles_are_reasoning();
            }
            sample.parser = Some(parser);
            sample.max_calls = reader.is_single_call.then_some(1);
        }
        self
    }

    /// Sends a [`Delta`] for every token when it is sampled ([`Delta::sampled`]), even while its text is held
    /// back until more is known.
    #[must_use]
    pub fn telling_tokens(mut self) -> Self {
        self.tells_tokens = true;
        self
    }

    /// Calls `note` for every token of the first sample, when it arrives from the engine. `note` is dropped
    /// when that sample has ended, before its end is reported, or with the stream.
    #[must_use]
    pub fn noting(mut self, note: impl FnMut(u32) + Send + 'static) -> Self {
        self.note = Some(Note(Box::new(note)));
        self
    }

    /// Samples of all prompts.
    pub fn n_samples(&self) -> usize {
        self.samples.len()
    }

    /// Handles that cancel the generations from elsewhere, one for each prompt.
    pub fn cancellers(&self) -> Vec<Canceller> {
        self.generations.iter().map(Generation::canceller).collect()
    }

    /// The next event; `None` after the last.
    pub async fn next_event(&mut self) -> Option<TextEvent> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// Polls for the next event; `None` after the last.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<TextEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            let Poll::Ready(next) = self.poll_any(context) else {
                return Poll::Pending;
            };
            let Some((prompt, event)) = next else {
                return Poll::Ready(None);
            };
            match event {
                Event::Token(token) => self.take_token(prompt, token),
                Event::Finished(finished) => self.take_end(prompt, finished),
                Event::Failed { sample, error } => {
                    if self.sample_idx(prompt, sample) == 0 {
                        self.note = None;
                    }
                    return Poll::Ready(Some(TextEvent::Failed {
                        sample: self.sample_idx(prompt, sample),
                        error,
                    }));
                }
                Event::Prefill(report) => {
                    return Poll::Ready(Some(TextEvent::Prefill(Prefill {
                        sample: self.sample_idx(prompt, report.sample),
                        ..report
                    })));
                }
                Event::Rows(_) => {}
            }
        }
    }

    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta, Error>>> {
        while !self.has_failed {
            match self.poll_event(context) {
                Poll::Ready(Some(TextEvent::Delta(delta))) => return Poll::Ready(Some(Ok(delta))),
                Poll::Ready(Some(TextEvent::Prefill(_) | TextEvent::Finished(_))) => {}
                Poll::Ready(Some(TextEvent::Failed { error, .. })) => {
                    self.has_failed = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(None)
    }

    /// Polls the generations in turn; ready with `None` once all have ended.
    fn poll_any(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        let mut have_all_ended = true;
        for (prompt, generation) in self.generations.iter_mut().enumerate() {
            match generation.poll_event(context) {
                Poll::Ready(Some(event)) => return Poll::Ready(Some((prompt, event))),
                Poll::Ready(None) => {}
                Poll::Pending => have_all_ended = false,
            }
        }
        if have_all_ended {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    fn sample_idx(&self, prompt: usize, sample: u32) -> u32 {
        prompt as u32 * self.samples_per_prompt + sample
    }

    fn take_token(&mut self, prompt: usize, token: Token) {
        let sample = self.sample_idx(prompt, token.sample);
        let sample_of_prompt = token.sample;
        if let Some(Note(note)) = self.note.as_mut().filter(|_| sample == 0) {
            note(token.id);
        }
        let sampled = self.tells_tokens.then_some(token.id);
        let state = &mut self.samples[sample as usize];
        let has_ended = state.has_ended();
        let (parts, tokens) = state.push(token);
        if state.has_ended() {
            self.generations[prompt].stop(sample_of_prompt);
        }
        self.send(sample, parts, tokens, sampled.filter(|_| !has_ended));
    }

    fn take_end(&mut self, prompt: usize, finished: Finished) {
        let sample = self.sample_idx(prompt, finished.sample);
        if sample == 0 {
            // Dropped before the end is reported, so that the receiver of the end finds the note complete.
            self.note = None;
        }
        let state = &mut self.samples[sample as usize];
        let (parts, tokens) = state.finish(finished.reason);
        let stopped_by = state.matcher.stopped_by();
        let (reasoning_tokens, n_calls) = (state.n_reasoning_tokens, state.n_calls);
        self.send(sample, parts, tokens, None);
        self.ready.push_back(TextEvent::Finished(TextEnd {
            sample,
            finished,
            stopped_by,
            reasoning_tokens,
            n_calls,
        }));
    }

    fn send(&mut self, sample: u32, parts: Vec<Part>, tokens: Vec<ScoredToken>, sampled: Option<u32>) {
        if parts.is_empty() && tokens.is_empty() && sampled.is_none() {
            return;
        }
        let texts = parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let delta = Delta {
            sample,
            text: texts.collect(),
            parts,
            tokens,
            sampled,
        };
        self.ready.push_back(TextEvent::Delta(delta));
    }
}

impl Iterator for TextStream {
    type Item = Result<Delta, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        wait(|context| self.poll_piece(context))
    }
}

/// The pending text of one sample, and the tokens it belongs to.
#[derive(Clone, Debug)]
struct SampleText {
    decoder: StreamDecoder<Arc<Tokenizer>>,
    matcher: StopMatcher,
    /// Takes the text apart; without it, all is text.
    parser: Option<ReplyParser>,
    /// Tokens whose text is not wholly out, each with the length of the text up to its end.
    held: VecDeque<(usize, ScoredToken)>,
    n_decoded_bytes: usize,
    /// Bytes of the text that were read.
    n_read_bytes: usize,
    /// Bytes of the text that were sent.
    n_sent_bytes: usize,
    n_reasoning_tokens: usize,
    n_calls: usize,
    /// Calls after which the sample ends.
    max_calls: Option<usize>,
}

impl SampleText {
    fn new(tokenizer: Arc<Tokenizer>, stops: &[String]) -> Self {
        let options = DecodeOptions {
            is_continuation: true,
            ..DecodeOptions::default()
        };
        Self {
            decoder: StreamDecoder::new(tokenizer, options),
            matcher: StopMatcher::new(stops),
            parser: None,
            held: VecDeque::new(),
            n_decoded_bytes: 0,
            n_read_bytes: 0,
            n_sent_bytes: 0,
            n_reasoning_tokens: 0,
            n_calls: 0,
            max_calls: None,
        }
    }

    /// Whether nothing that follows is part of the sample.
    fn has_ended(&self) -> bool {
        self.matcher.stopped_by().is_some() || self.max_calls == Some(self.n_calls)
    }

    fn push(&mut self, token: Token) -> (Vec<Part>, Vec<ScoredToken>) {
        if self.has_ended() {
            return (Vec::new(), Vec::new());
        }
        let was_reasoning = self.is_reasoning();
        let piece = self.decoder.push(token.id);
        let text = piece.to_owned();
        self.n_decoded_bytes += text.len();
        let scored = ScoredToken {
            id: token.id,
            logprob: token.logprob,
            top: token.top,
            time: token.time,
        };
        self.held.push_back((self.n_decoded_bytes, scored));
        let released = self.release(text, None);
        // The tags around it count as well.
        self.n_reasoning_tokens += usize::from(was_reasoning || self.is_reasoning());
        released
    }

    fn is_reasoning(&self) -> bool {
        self.parser.as_ref().is_some_and(ReplyParser::is_reasoning)
    }

    /// Releases the rest when the sample ends for a reason.
    fn finish(&mut self, reason: FinishReason) -> (Vec<Part>, Vec<ScoredToken>) {
        if self.has_ended() {
            return (Vec::new(), Vec::new());
        }
        let text = self.decoder.finish().to_owned();
        self.n_decoded_bytes += text.len();
        self.release(text, Some(reason))
    }

    /// Releases the text that is certain with more text, or all of it if `end` gives the reason why nothing follows.
    fn release(&mut self, text: String, end: Option<FinishReason>) -> (Vec<Part>, Vec<ScoredToken>) {
        let mut parts = Vec::new();
        let pieces = match &mut self.parser {
            None => {
                let source_bytes = text.len();
                let part = Part::Text(text);
                vec![Piece { part, source_bytes }]
            }
            Some(parser) => {
                let mut pieces = parser.push(&text);
                match end {
                    None => {}
                    Some(FinishReason::Stop) => pieces.extend(parser.finish()),
                    Some(FinishReason::Length | FinishReason::Cancelled) => pieces.extend(parser.cut()),
                }
                pieces
            }
        };
        for piece in pieces {
            if self.has_ended() {
                break;
            }
            self.take(piece, &mut parts);
        }
        if end.is_some() && !self.has_ended() {
            self.flush(&mut parts);
        }
        let n_sent = self.n_sent_bytes;
        let n_released = self.held.iter().take_while(|(end, _)| *end <= n_sent).count();
        let tokens = self.held.drain(..n_released).map(|(_, token)| token).collect();
        (parts, tokens)
    }

    /// Takes a piece. Only text is searched for stop strings; a held beginning of a stop string becomes text as soon as anything else
    /// follows.
    fn take(&mut self, piece: Piece, parts: &mut Vec<Part>) {
        self.n_read_bytes += piece.source_bytes;
        let text = match piece.part {
            Part::Text(text) => text,
            Part::CallBroken { call_idx, source } => {
                let progress = self.matcher.push(&source);
                let source = if progress.stopped_by.is_some() {
                    progress.text
                } else {
                    progress.text + &self.matcher.finish()
                };
                self.n_sent_bytes = self.n_read_bytes;
                parts.push(Part::CallBroken { call_idx, source });
                return;
            }
            Part::Markup => {
                if self.matcher.n_held() == 0 {
                    self.n_sent_bytes = self.n_read_bytes;
                }
                return;
            }
            other => {
                self.flush(parts);
                parts.extend(self.part(Piece {
                    part: other,
                    source_bytes: 0,
                }));
                return;
            }
        };
        let n_before = self.matcher.n_held();
        let progress = self.matcher.push(&text);
        let n_out = progress.text.len();
        if n_out > 0 {
            parts.push(Part::Text(progress.text));
        }
        // Marks may stand between the held text and this one.
        let n_left = n_before + text.len() - n_out;
        if n_left <= text.len() {
            self.n_sent_bytes = self.n_read_bytes - n_left;
        }
    }

    /// Releases text that was held as a possible stop string.
    fn flush(&mut self, parts: &mut Vec<Part>) {
        let text = self.matcher.finish();
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        self.n_sent_bytes = self.n_read_bytes;
    }

    /// A part as it goes out: marks do not, and every call has an id.
    fn part(&mut self, piece: Piece) -> Option<Part> {
        match piece.part {
            Part::Markup => None,
            Part::CallStart { call_idx, id, name } => Some(Part::CallStart {
                call_idx,
                // Short ids are numbers of calls in one answer; those of two answers would be the same.
                id: Some(id.filter(|id| id.len() > 3).unwrap_or_else(fresh_id)),
                name,
            }),
            part => {
                self.n_calls += usize::from(matches!(part, Part::CallEnd { .. }));
                Some(part)
            }
        }
    }
}

/// An id that no other call has.
fn fresh_id() -> String {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    id_of(RandomState::new().build_hasher().finish())
}
