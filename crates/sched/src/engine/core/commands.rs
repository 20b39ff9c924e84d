//! Commands: the callers' requests, cancellations and pauses reach the scheduler.
//!
//! Part of [`Core`]. Invariant: every sequence of the scheduler has a lane, and every lane a sequence.

use crate::{
    engine::core::{
        Core, cause::Cause, forced_output::ForcedOutput, lane::Lane, prefill_progress::PrefillWatch,
        stopwatch::Stopwatch,
    },
    masks::next_mask::{LaneMask, Promises},
    plan::outcome::End,
    queue::{event::RequestId, gauge::Place, mailbox::Command, submission::Submission},
};

impl Core {
    /// Executes a command of a caller.
    pub(crate) fn obey(&mut self, command: Command, now_us: u64) {
        match command {
            Command::Submit(submission) => self.accept_or_fetch(*submission, now_us),
            Command::Cancel(request) => {
                self.stop_waiting(request);
                self.end_samples(request, None, now_us);
            }
            Command::Stop { request, sample } => {
                self.stop_waiting(request);
                self.end_samples(request, Some(sample), now_us);
            }
            Command::Resume(request) => self.set_paused(request, false),
            Command::ForgetCache => self.scheduler.forget_cache(),
            Command::Adapter(command) => self.obey_adapter(command),
            Command::Memory(command) => self.transfer(command, now_us),
        }
    }

    /// Creates the sequences of a request. All samples after the first are forks of it.
    pub(super) fn accept(&mut self, submission: Submission) {
        let mut sequences = Vec::with_capacity(submission.job.n_samples() as usize);
        for sample in 0..submission.job.n_samples() {
            let mut spec = submission.spec(sequences.first().copied());
            spec.uses_prefix_cache &= self.uses_prefix_cache();
            let seq = self.scheduler.submit(spec);
            sequences.push(seq);
            let mut opening = submission.opening(sample);
            if let (Some(opening), Some(tokens)) = (&mut opening, self.scheduler.tokens_of(seq)) {
                // The prompt filled the context and was cut.
                opening.take_off(submission.tokens.len() - tokens.len());
            }
            let n_prompt = self.scheduler.tokens_of(seq).map_or(0, <[u32]>::len);
            let follows = submission.job.follows().cloned();
            let forced = follows.map(|tokens| ForcedOutput::new(tokens, n_prompt));
            self.lanes.open(Lane {
                seq,
                request: submission.request,
                sample,
                sampling: submission.job.sampling(sample),
                opening,
                forced,
                media: submission.job.media(),
                mask: submission.job.constraint().cloned().map(LaneMask::Waiting),
                promises: Promises::default(),
                expected: None,
                unordered: None,
                stopwatch: Stopwatch::new(submission.submitted_us, submission.job.traces_tokens()),
                prefill: (sample == 0 && submission.job.reports_prefill())
                    .then(|| PrefillWatch::new(n_prompt)),
                n_queued_tokens: if sample == 0 { submission.tokens.len() } else { 0 },
                place: Place::Queued,
            });
            self.begin_mask_early(seq);
        }
        self.expect_drafts(submission.tokens.len());
        self.lanes
            .add_request(submission.request, submission.events, sequences);
    }

    /// Returns whether sequences may use the prefix cache. An encoder's sequences leave nothing behind after
    /// their step.
    pub(super) fn uses_prefix_cache(&self) -> bool {
        self.config.uses_prefix_cache && !self.scheduler.config().limits.is_encoder
    }

    /// Ends the sequences of a request, or only that of one sample, as cancelled.
    fn end_samples(&mut self, request: RequestId, sample: Option<u32>, now_us: u64) {
        let (scheduler, outcomes) = (&mut self.scheduler, &mut self.outcomes);
        self.lanes.each_of(request, |lane| {
            if sample.is_none_or(|sample| sample == lane.sample) {
                scheduler.end(lane.seq, End::Cancelled, outcomes);
            }
        });
        self.publish_outcomes(Cause::Caller, now_us);
    }

    /// Pauses or resumes the sequences of a request.
    pub(super) fn set_paused(&mut self, request: RequestId, is_paused: bool) {
        let (scheduler, queue) = (&mut self.scheduler, &mut self.queue);
        self.lanes.each_of(request, |lane| {
            scheduler.set_paused(lane.seq, is_paused);
            queue.set_parked(&mut lane.place, lane.n_queued_tokens, is_paused);
        });
    }

    /// Ends sequences past their deadlines.
    pub(super) fn expire(&mut self, now_us: u64) {
        self.scheduler.expire(now_us, &mut self.outcomes);
        self.publish_outcomes(Cause::Caller, now_us);
    }

    /// Ends everything as cancelled.
    pub(crate) fn cancel_all(&mut self, now_us: u64) {
        self.stop_all_waiting();
        for request in self.lanes.requests() {
            self.end_samples(request, None, now_us);
        }
    }
}
