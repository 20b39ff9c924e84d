//! Answers to any number of prompts or conversations, as many at a time as the engine runs.
//!
//! It reads many streams at once, since a stream that is not read is paused. Invariant: the answers have the
//! order of the prompts, and a failure does not affect the others.

use std::task::{Context, Poll};

use tokenmill_sched::EngineError;

use crate::{
    Answer, Conversation, Error, Model, TextParams, TextStream, answer::Gathered, model::check_single,
    wait::wait,
};

/// A prompt that is being answered.
struct Open {
    prompt_idx: usize,
    stream: TextStream,
    gathered: Gathered,
}

impl Model {
    /// Continues any number of texts, as many side by side as the model was loaded for, and waits for all of them. The
    /// answers are in the order of the prompts, and one that fails leaves the others alone.
    pub fn batch(&self, prompts: &[impl AsRef<str>], params: &TextParams) -> Vec<Result<Answer, Error>> {
        answer_all(self, prompts, |prompt| self.stream(prompt.as_ref(), params))
    }

    /// Answers any number of conversations, as [`Self::batch`] continues texts.
    pub fn chat_batch(
        &self,
        conversations: &[Conversation],
        params: &TextParams,
    ) -> Vec<Result<Answer, Error>> {
        answer_all(self, conversations, |conversation| {
            self.chat_stream(conversation.clone(), params)
        })
    }
}

/// Begins each request with `begin`, as many at once as run and wait, and waits for all of them.
fn answer_all<T>(
    model: &Model,
    prompts: &[T],
    begin: impl Fn(&T) -> Result<TextStream, Error>,
) -> Vec<Result<Answer, Error>> {
    // Twice as many as run, so that a sequence that ends has a successor.
    let max_open = model.engine().config().max_running.max(1).saturating_mul(2);
    let mut answers: Vec<_> = prompts.iter().map(|_| None).collect();
    let mut open: Vec<Open> = Vec::new();
    let mut n_begun = 0;
    while n_begun < prompts.len() || !open.is_empty() {
        while n_begun < prompts.len() && open.len() < max_open {
            let begun = begin(&prompts[n_begun]).and_then(|stream| {
                check_single(&stream)?;
                Ok(stream)
            });
            match begun {
                // Other requests fill the queue; one of these makes room when it ends.
                Err(Error::Engine(EngineError::QueueFull { .. } | EngineError::QueueTokensFull { .. }))
                    if !open.is_empty() =>
                {
                    break;
                }
                Err(error) => answers[n_begun] = Some(Err(error)),
                Ok(stream) => open.push(Open {
                    prompt_idx: n_begun,
                    stream,
                    gathered: Gathered::new(1),
                }),
            }
            n_begun += 1;
        }
        if !open.is_empty() {
            let (prompt_idx, answer) = wait(|context| poll_any(&mut open, context));
            answers[prompt_idx] = Some(answer);
        }
    }
    (answers.into_iter())
        .map(|answer| answer.expect("every prompt was begun or refused"))
        .collect()
}

/// Polls all open prompts; ready with the answer of one that has ended.
fn poll_any(open: &mut Vec<Open>, context: &mut Context<'_>) -> Poll<(usize, Result<Answer, Error>)> {
    for at in 0..open.len() {
        while let Poll::Ready(event) = open[at].stream.poll_event(context) {
            let failed = match event {
                Some(event) => match open[at].gathered.take(event) {
                    Ok(()) => continue,
                    Err(error) => Some(error),
                },
                None => None,
            };
            let Open {
                prompt_idx, gathered, ..
            } = open.swap_remove(at);
            let answer = match failed {
                Some(error) => Err(error),
                None => gathered
                    .answers()
                    .map(|mut answers| answers.pop().expect("one sample has one answer")),
            };
            return Poll::Ready((prompt_idx, answer));
        }
    }
    Poll::Pending
}
