//! [`Answer`]: a finished sample, and how the events of a stream become answers.
//!
//! Separate from the stream because those who read piece by piece need none of it. Invariant: a sample without an end is an
//! error, never an answer.

use tokenmill_sched::{EngineError, FinishReason, Timings, Usage};

use crate::{
    Error, ScoredToken,
    text_stream::{Delta, TextEnd, TextEvent, TextStream},
    wait::wait,
};

/// A finished sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Its text; neither a stop string nor an end-of-text token is part of it.
    pub text: String,
    /// The tokens of that text.
    pub tokens: Vec<ScoredToken>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The stop string that ended it, as its place in the request's list.
    pub stopped_by: Option<usize>,
    /// What it took.
    pub usage: Usage,
    /// How long that took.
    pub timings: Timings,
}

/// A finished sample, with all that the stream said of its end.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its text.
    pub text: String,
    /// The tokens of that text.
    pub tokens: Vec<ScoredToken>,
    /// How it ended.
    pub end: TextEnd,
}

impl From<Sample> for Answer {
    fn from(Sample { text, tokens, end }: Sample) -> Self {
        Self {
            text,
            tokens,
            finish: end.finished.reason,
            stopped_by: end.stopped_by,
            usage: end.finished.usage,
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

    /// As [`Self::answers`], and shows every event as it comes.
    ///
    /// # Errors
    /// As [`Self::answers`].
    pub async fn gather(mut self, mut on_event: impl FnMut(&TextEvent)) -> Result<Vec<Sample>, Error> {
        let mut gathered = Gathered::new(self.n_samples());
        while let Some(event) = self.next_event().await {
            on_event(&event);
            gathered.take(event)?;
        }
        gathered.samples()
    }

    /// Waits on this thread for every sample, and hands over each piece as it comes.
    ///
    /// # Errors
    /// As [`Self::answers`], and what `on_piece` returns, which cancels all samples.
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

/// What came of each sample so far.
#[derive(Debug)]
pub(crate) struct Gathered(Vec<(String, Vec<ScoredToken>, Option<TextEnd>)>);

impl Gathered {
    pub(crate) fn new(n_samples: usize) -> Self {
        Self(vec![(String::new(), Vec::new(), None); n_samples])
    }

    pub(crate) fn take(&mut self, event: TextEvent) -> Result<(), Error> {
        match event {
            TextEvent::Delta(delta) => {
                let (text, tokens, _) = &mut self.0[delta.sample as usize];
                text.push_str(&delta.text);
                tokens.extend(delta.tokens);
            }
            TextEvent::Finished(end) => {
                let sample = end.sample as usize;
                self.0[sample].2 = Some(end);
            }
            TextEvent::Failed { error, .. } => return Err(error.into()),
        }
        Ok(())
    }

    pub(crate) fn answers(self) -> Result<Vec<Answer>, Error> {
        Ok(self.samples()?.into_iter().map(Answer::from).collect())
    }

    fn samples(self) -> Result<Vec<Sample>, Error> {
        let sample = |(text, tokens, end): (_, _, Option<TextEnd>)| {
            let end = end.ok_or(EngineError::Stopped)?;
            Ok(Sample { text, tokens, end })
        };
        self.0.into_iter().map(sample).collect()
    }
}
