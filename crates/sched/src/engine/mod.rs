//! [`Engine`]: the handle to a running engine, and its loop.
//!
//! One thread owns the executor and everything mutable; handles only check requests, post commands and read
//! what the thread publishes. Invariants: no caller can block the thread; when the thread ends, for whatever
//! reason, every open request ends too.

mod adapters;
pub(crate) mod board;
pub(crate) mod core;
pub(crate) mod generation;
pub(crate) mod prefilled;
pub(crate) mod prefix_transfer;
pub(crate) mod step_times;

use std::time::{Duration, Instant};

use tokenmill_backend::{Executor, ExecutorLimits, MemoryFormat};

use crate::{
    draft_model::DraftModel,
    engine::{
        board::{Board, EngineStats},
        core::Core,
        generation::Generation,
    },
    error::EngineError,
    pages::{
        events::{PageEvents, page_events},
        store::SharedPageStore,
    },
    params::{EngineConfig, ForwardParams, GenerateParams},
    queue::{
        event::{Event, FinishReason, Finished, RequestId, Timings, Usage},
        mailbox::{Admission, Command, EngineState, Intent, Mailbox, QueueLimits},
        submission::{InputRows, Job, Reach, Submission, check_forward, check_generate},
    },
    sync::{Arc, Mutex, channel::channel, mpsc, thread},
};

/// Interval of heartbeats while the engine is idle.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// Number of row chunks that a forward pass buffers before it is paused; they are large.
const FORWARD_BUFFER: usize = 2;

/// A running engine. Clones are handles to the same engine; dropping the last one cancels all requests and
/// ends the engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: ExecutorLimits,
    memory_format: Option<MemoryFormat>,
    input_row_width: Option<usize>,
    n_steps: usize,
    config: EngineConfig,
    mailbox: Arc<Mailbox>,
    board: Arc<Board>,
    epoch: Instant,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    page_events: Mutex<Option<PageEvents>>,
}

impl Engine {
    /// Starts an engine on `executor`.
    ///
    /// # Panics
    /// If the system starts no thread; [`Self::try_start`] returns an error then.
    pub fn start(executor: impl Executor + Send + 'static, config: EngineConfig) -> Self {
        Self::try_start(executor, config).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts an engine on `executor`.
    ///
    /// # Errors
    /// [`EngineError::NoThread`].
    pub fn try_start(
        executor: impl Executor + Send + 'static,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        Self::start_both(config, move || Ok((executor, None)))
    }

    /// Starts an engine on `executor`, with `draft` as its draft model if `config` asks for one: a faster
    /// executor of a model with the same vocabulary. The output is the same without it.
    ///
    /// # Panics
    /// If `draft` is an encoder, which cannot predict tokens, or if the system starts no thread;
    /// [`Self::try_start_with_draft`] returns an error then.
    pub fn start_with_draft(
        executor: impl Executor + Send + 'static,
        draft: impl Executor + Send + 'static,
        config: EngineConfig,
    ) -> Self {
        Self::try_start_with_draft(executor, draft, config).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Does the same as [`Self::start_with_draft`], without a panic if there is no thread.
    ///
    /// # Errors
    /// [`EngineError::NoThread`].
    ///
    /// # Panics
    /// If `draft` is an encoder, which cannot predict tokens.
    pub fn try_start_with_draft(
        executor: impl Executor + Send + 'static,
        draft: impl Executor + Send + 'static,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        assert!(!draft.limits().is_encoder, "an encoder drafts nothing");
        let make = move || {
            let draft: Box<dyn Executor> = Box::new(draft);
            Ok((executor, Some(draft)))
        };
        Self::start_both(config, make)
    }

    /// Starts an engine on an executor that `make` builds on the engine's own thread, for executors that are
    /// not `Send`, such as those bound to a device context. Returns when it is built.
    ///
    /// # Errors
    /// The error of `make`, and [`EngineError::NoThread`].
    pub fn start_with<X: Executor + 'static, E: From<EngineError> + Send + 'static>(
        config: EngineConfig,
        make: impl FnOnce() -> Result<X, E> + Send + 'static,
    ) -> Result<Self, E> {
        Self::start_both(config, move || Ok((make()?, None)))
    }

    /// Does the same as [`Self::start_with`], with an optional draft model.
    fn start_both<X: Executor + 'static, E: From<EngineError> + Send + 'static>(
        config: EngineConfig,
        make: impl FnOnce() -> Result<(X, Option<Box<dyn Executor>>), E> + Send + 'static,
    ) -> Result<Self, E> {
        let mailbox = Mailbox::new(QueueLimits {
            max_queued: config.max_queued,
            max_queued_tokens: config.max_queued_tokens,
        });
        let board = Arc::new(Board::default());
        let epoch = Instant::now();
        let (page_sender, page_events) = config.max_page_event_batches.map(page_events).unzip();
        let (ready, built) = mpsc::channel();
        let thread = {
            let (mailbox, board, config) = (Arc::clone(&mailbox), Arc::clone(&board), config.clone());
            let builder = thread::Builder::new().name("engine".to_owned());
            let started = builder.spawn(move || {
                // Declared first and so dropped last, even if the executor panics.
                let end = EndOfThread(&mailbox);
                let (executor, draft) = match make() {
                    Ok(made) => made,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                let _ = ready.send(Ok((
                    executor.limits().clone(),
                    executor.memory_format(),
                    executor.input_row_width(),
                    executor.steps_in_flight(),
                )));
                let (model_salt, page_store) = (config.model_salt, config.page_store.clone());
                let mut core = Core::new(
                    Box::new(executor),
                    config,
                    Arc::clone(&board),
                    Arc::clone(&mailbox),
                );
                if let Some(draft) = draft {
                    core.set_draft_model(DraftModel::new(draft, model_salt));
                }
                if let Some(SharedPageStore(store)) = page_store {
                    core.set_page_store(store, Arc::clone(&mailbox));
                }
                if let Some(sender) = page_sender {
                    core.send_page_events(sender);
                }
                serve(core, &mailbox, &board, epoch);
                drop(end);
            });
            started.map_err(|error| EngineError::NoThread { kind: error.kind() })?
        };
        let (limits, memory_format, input_row_width, n_steps) = match built.recv() {
            Ok(Ok(built)) => built,
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let payload = thread
                    .join()
                    .expect_err("a thread that says nothing has panicked");
                std::panic::resume_unwind(payload)
            }
        };
        Ok(Self {
            inner: Arc::new(Inner {
                limits,
                memory_format,
                input_row_width,
                n_steps: config.steps_in_flight.unwrap_or(n_steps),
                config,
                mailbox,
                board,
                epoch,
                thread: Mutex::new(Some(thread)),
                page_events: Mutex::new(page_events),
            }),
        })
    }

    /// Submits a prompt to generate from. Never blocks.
    ///
    /// # Errors
    /// An error for an invalid request, a full queue, or an engine that is ending.
    pub fn submit(&self, tokens: Vec<u32>, params: GenerateParams) -> Result<Generation, EngineError> {
        self.submit_buffered(tokens, params, self.inner.config.stream_buffer)
    }

    /// Does the same as [`Self::submit`], for the first of several prompts: the queue must have room for all of them.
    /// `n_further` is the number of other prompts, each with as many samples as this one, and
    /// `n_further_tokens` is the number of their tokens. They follow with [`Self::submit_further`].
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn submit_first(
        &self,
        tokens: Vec<u32>,
        params: GenerateParams,
        n_further: usize,
        n_further_tokens: usize,
    ) -> Result<Generation, EngineError> {
        let admission = Admission::BoundedWith {
            n_sequences: n_further * params.n_samples as usize,
            n_tokens: n_further_tokens,
        };
        self.submit_generation(tokens, params, self.inner.config.stream_buffer, admission)
    }

    /// Submits a further prompt of a request whose first one was accepted, even if the queue is full. Never
    /// blocks.
    ///
    /// The queue's limits apply to requests: an accepted request is not refused midway.
    ///
    /// # Errors
    /// An error for an invalid request, or an engine that is ending.
    pub fn submit_further(
        &self,
        tokens: Vec<u32>,
        params: GenerateParams,
    ) -> Result<Generation, EngineError> {
        self.submit_generation(
            tokens,
            params,
            self.inner.config.stream_buffer,
            Admission::Granted,
        )
    }

    pub(crate) fn submit_buffered(
        &self,
        tokens: Vec<u32>,
        params: GenerateParams,
        buffer: usize,
    ) -> Result<Generation, EngineError> {
        self.submit_generation(tokens, params, buffer, Admission::Bounded)
    }

    fn submit_generation(
        &self,
        tokens: Vec<u32>,
        params: GenerateParams,
        buffer: usize,
        admission: Admission,
    ) -> Result<Generation, EngineError> {
        let shift = self.inner.config.context_shift;
        if params.follows.is_some() && self.inner.n_steps > 1 {
            return Err(EngineError::CannotFollow);
        }
        let Reach {
            max_len,
            context_shift,
        } = check_generate(&self.inner.limits, self.input_rows(), &tokens, &params, shift)?;
        let n_samples = params.n_samples;
        if max_len == tokens.len() {
            return Ok(self.nothing_to_generate(tokens.len(), n_samples));
        }
        self.submit_job(
            tokens,
            Job::Generate {
                params,
                max_len,
                context_shift,
            },
            n_samples,
            buffer,
            admission,
        )
    }

    /// Submits a forward pass over known tokens; its rows arrive as [`Event::Rows`]. Never blocks.
    ///
    /// # Errors
    /// An error for an invalid request, a full queue, or an engine that is ending.
    pub fn submit_forward(&self, tokens: Vec<u32>, params: ForwardParams) -> Result<Generation, EngineError> {
        check_forward(&self.inner.limits, self.input_rows(), &tokens, &params)?;
        self.submit_job(
            tokens,
            Job::Forward(params),
            1,
            FORWARD_BUFFER,
            Admission::Bounded,
        )
    }

    /// Submits a further forward pass of a request whose first one was accepted, even if the queue is full.
    /// Never blocks.
    ///
    /// A request with many passes asks for room with [`Self::submit_forward`] whenever it has nothing left in
    /// the engine, since others may have filled the queue meanwhile, and otherwise uses this.
    ///
    /// # Errors
    /// An error for an invalid request, or an engine that is ending.
    pub fn submit_further_forward(
        &self,
        tokens: Vec<u32>,
        params: ForwardParams,
    ) -> Result<Generation, EngineError> {
        check_forward(&self.inner.limits, self.input_rows(), &tokens, &params)?;
        self.submit_job(
            tokens,
            Job::Forward(params),
            1,
            FORWARD_BUFFER,
            Admission::Granted,
        )
    }

    pub(crate) fn check(&self, tokens: &[u32], params: &GenerateParams) -> Result<(), EngineError> {
        check_generate(
            &self.inner.limits,
            self.input_rows(),
            tokens,
            params,
            self.inner.config.context_shift,
        )
        .map(drop)
    }

    fn submit_job(
        &self,
        tokens: Vec<u32>,
        job: Job,
        n_samples: u32,
        buffer: usize,
        admission: Admission,
    ) -> Result<Generation, EngineError> {
        let (events, receiver) = channel(buffer);
        let submitted_us = self.inner.epoch.elapsed().as_micros() as u64;
        let n_tokens = tokens.len();
        let sampling_key = job.sampling_key();
        let request = self.inner.mailbox.submit(
            n_samples as usize,
            n_tokens,
            job.adapter(),
            admission,
            |request| Submission {
                request,
                tokens,
                job,
                sampling_key,
                events,
                submitted_us,
            },
        )?;
        Ok(Generation::new(
            request,
            n_samples,
            receiver,
            Arc::clone(&self.inner.mailbox),
        ))
    }

    /// Returns a request that ends at once, without involving the engine.
    fn nothing_to_generate(&self, prompt_tokens: usize, n_samples: u32) -> Generation {
        let (events, receiver) = channel(n_samples as usize);
        for sample in 0..n_samples {
            events.send(Event::Finished(Finished {
                sample,
                reason: FinishReason::Length,
                usage: Usage {
                    prompt_tokens,
                    ..Usage::default()
                },
                timings: Timings::default(),
            }));
        }
        Generation::new(
            RequestId::NONE,
            n_samples,
            receiver,
            Arc::clone(&self.inner.mailbox),
        )
    }

    /// Returns the executor's limits.
    pub fn limits(&self) -> &ExecutorLimits {
        &self.inner.limits
    }

    /// Returns the engine's configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// Returns whether the engine accepts requests.
    pub fn state(&self) -> EngineState {
        self.inner.mailbox.state()
    }

    /// Returns the time since the last heartbeat of the engine's thread, which occurs before every step and
    /// while idle. It never blocks, even if the thread hangs.
    pub fn heartbeat_age(&self) -> Duration {
        let beat = Duration::from_micros(self.inner.board.heartbeat_us());
        self.inner.epoch.elapsed().saturating_sub(beat)
    }

    /// Returns a snapshot after the last step.
    pub fn stats(&self) -> EngineStats {
        self.inner.board.stats()
    }

    /// Returns the numbers of sequences and prompt tokens that wait to begin, counted from submission.
    pub fn queued(&self) -> (usize, usize) {
        self.inner.mailbox.n_queued()
    }

    /// Returns the executor's memory layout of sequences; `None` if it cannot be read.
    pub fn memory_format(&self) -> Option<&MemoryFormat> {
        self.inner.memory_format.as_ref()
    }

    /// Returns the width of non-token inputs ([`GenerateParams::media`]); `None` if the executor accepts
    /// none.
    pub fn input_row_width(&self) -> Option<usize> {
        self.inner.input_row_width
    }

    fn input_rows(&self) -> InputRows {
        InputRows {
            width: self.inner.input_row_width,
            max_step_tokens: self.inner.config.max_step_tokens,
        }
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.inner.mailbox
    }

    pub(crate) fn board(&self) -> &Board {
        &self.inner.board
    }

    /// Returns the stream of prefix cache changes to the first caller; `None` to later ones, and if
    /// [`EngineConfig::max_page_event_batches`] disables it.
    pub fn take_page_events(&self) -> Option<PageEvents> {
        let mut events = self.inner.page_events.lock();
        events.as_mut().ok().and_then(|events| events.take())
    }

    /// Empties the prefix cache.
    pub fn forget_cache(&self) {
        self.inner.mailbox.post(Command::ForgetCache);
    }

    /// Stops accepting requests, finishes the accepted ones and then ends. Returns at once; see
    /// [`Self::wait_for_end`].
    pub fn drain(&self) {
        self.inner.mailbox.drain();
    }

    /// Waits until the engine has ended; returns `false` if `timeout` expires first.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        self.inner.mailbox.wait_for_end(timeout)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.mailbox.abandon();
        let thread = self.thread.get_mut().map(Option::take);
        if let Ok(Some(thread)) = thread {
            // A panic of the thread has been reported to every open request.
            let _ = thread.join();
        }
    }
}

/// Reports the end of the engine's thread when dropped.
struct EndOfThread<'a>(&'a Mailbox);

impl Drop for EndOfThread<'_> {
    fn drop(&mut self) {
        self.0.close(EngineError::Stopped);
    }
}

/// The engine's loop.
fn serve(mut core: Core, mailbox: &Mailbox, board: &Board, epoch: Instant) {
    let clock = move || epoch.elapsed().as_micros() as u64;
    let mut commands = Vec::new();
    loop {
        board.beat(clock());
        let intent = mailbox.take(&mut commands);
        for command in commands.drain(..) {
            core.obey(command, clock());
        }
        if intent == Intent::EndNow {
            core.cancel_all(clock());
            // The store has room, and each call is only a copy.
            while core.keep_idle_pages() {}
            return;
        }
        let has_advanced = core.step(&clock);
        core.publish();
        if let Some(error) = core.lost() {
            return mailbox.close(EngineError::Step(error.clone()));
        }
        if has_advanced {
            continue;
        }
        if intent == Intent::EndWhenEmpty {
            core.end_forgotten_holds(clock());
            if core.is_empty() && !core.is_keeping(clock()) {
                return;
            }
        }
        let until_deadline = core
            .next_deadline_us()
            .map(|at| Duration::from_micros(at.saturating_sub(clock())));
        let longest = core.longest_sleep(HEARTBEAT);
        mailbox.wait(until_deadline.map_or(longest, |until| until.min(longest)), intent);
    }
}
