//! [`PrefillWatch`]: the progress of a prompt, for a caller who asked for it.
//!
//! The stopwatch counts time, this counts tokens. Invariant: the reported number of tokens only grows, even
//! if the sequence is preempted and its prompt computed again.

use std::time::Duration;

use crate::queue::event::Prefill;

#[derive(Clone, Debug)]
pub(crate) struct PrefillWatch {
    n_prompt: usize,
    /// Number of tokens from the prefix cache when the sequence first began, and the number reported last.
    begun: Option<(usize, usize)>,
}

impl PrefillWatch {
    pub(crate) fn new(n_prompt: usize) -> Self {
        Self {
            n_prompt,
            begun: None,
        }
    }

    /// Returns the first report, of a sequence that begins with `n_cached` tokens of the prefix cache; `None` if it only resumes.
    pub(crate) fn begin(&mut self, sample: u32, n_cached: usize, queued: Duration) -> Option<Prefill> {
        if self.begun.is_some() {
            return None;
        }
        self.begun = Some((n_cached, n_cached));
        Some(self.report(sample, n_cached, n_cached, queued, Duration::ZERO))
    }

    /// Returns the report after the first `n_done` inputs were computed; `None` if there is nothing new.
    pub(crate) fn advance(
        &mut self,
        sample: u32,
        n_done: usize,
        queued: Duration,
        elapsed: Duration,
    ) -> Option<Prefill> {
        let n_done = n_done.min(self.n_prompt);
        let (n_cached, n_told) = self.begun.as_mut()?;
        if n_done <= *n_told {
            return None;
        }
        *n_told = n_done;
        let n_cached = *n_cached;
        Some(self.report(sample, n_cached, n_done, queued, elapsed))
    }

    fn report(
        &self,
        sample: u32,
        n_cached: usize,
        n_done: usize,
        queued: Duration,
        elapsed: Duration,
    ) -> Prefill {
        Prefill {
            sample,
            prompt_tokens: self.n_prompt,
            cached_tokens: n_cached,
            done_tokens: n_done,
            queued,
            elapsed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reported_number_of_tokens_only_grows_and_ends_with_the_prompt() {
        let none = Duration::ZERO;
        let mut watch = PrefillWatch::new(10);
        assert_eq!(watch.advance(0, 4, none, none), None, "it has not begun");
        let mut found = vec![watch.begin(0, 2, none)];
        for n_done in [6, 3, 6, 12, 13] {
            // It may have been preempted.
            found.push(watch.begin(0, 0, none));
            found.push(watch.advance(0, n_done, none, none));
        }
        let found = found.into_iter().flatten();
        let counts = found.map(|report| (report.prompt_tokens, report.cached_tokens, report.done_tokens));
        assert_eq!(counts.collect::<Vec<_>>(), [(10, 2, 2), (10, 2, 6), (10, 2, 10)]);
    }
}
