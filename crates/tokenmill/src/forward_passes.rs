//! [`ForwardPasses`]: the output rows of a request's inputs, in the order of the inputs.
//!
//! Embedding, reranking and deciding read them. Invariants: inputs are submitted as long as the engine's queue
//! takes them, so that they share steps, and the others as earlier ones end; while some are left, one is in
//! the engine, which ends it at the deadline; a failure cancels unfinished inputs.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokenmill_sched::{Engine, EngineError, Event, ForwardParams, Generation, Media};

use crate::Error;

/// How passes relate to the rest of their request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The most that are in the engine at a time. Their rows wait there until they are read.
    pub(crate) max_open: usize,
    /// Whether earlier passes of the request were accepted, so that a full queue does not refuse these.
    pub(crate) is_begun: bool,
}

/// The tokens of a pass, and the rows of the images among them.
#[derive(Clone, Debug)]
pub(crate) struct PassInput {
    pub(crate) tokens: Vec<u32>,
    pub(crate) media: Arc<[Media]>,
}

impl From<Vec<u32>> for PassInput {
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            media: Arc::new([]),
        }
    }
}

/// Returns the parameters of a pass by its tokens.
type ParamsOf = dyn Fn(&[u32]) -> ForwardParams + Send + Sync;

/// Forward passes over known tokens. Dropping them cancels unfinished work.
pub(crate) struct ForwardPasses {
    engine: Engine,
    params_of: Box<ParamsOf>,
    /// When all of them fail that have not ended, those that wait for room too.
    deadline: Option<Instant>,
    passes: VecDeque<Generation>,
    /// Inputs that the queue had no room for.
    rest: VecDeque<PassInput>,
    max_open: usize,
    /// Whether the queue took one.
    is_begun: bool,
    /// Tokens of the inputs that have ended, as far as they came from the prefix cache.
    n_cached_tokens: usize,
}

impl fmt::Debug for ForwardPasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardPasses")
            .field("n_begun", &self.passes.len())
            .field("n_waiting", &self.rest.len())
            .finish_non_exhaustive()
    }
}

impl ForwardPasses {
    /// Submits the inputs with the parameters that `params_of` gives for their tokens.
    pub(crate) fn start(
        engine: &Engine,
        inputs: Vec<Vec<u32>>,
        deadline: Option<Duration>,
        params_of: impl Fn(&[u32]) -> ForwardParams + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let deadline = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let pace = Pace {
            max_open: usize::MAX,
            is_begun: false,
        };
        let inputs = inputs.into_iter().map(PassInput::from).collect();
        Self::start_at(engine, inputs, pace, deadline, params_of)
    }

    /// Does the same at a pace, and ends at an instant.
    pub(crate) fn start_at(
        engine: &Engine,
        inputs: Vec<PassInput>,
        pace: Pace,
        deadline: Option<Instant>,
        params_of: impl Fn(&[u32]) -> ForwardParams + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let mut passes = Self {
            engine: engine.clone(),
            params_of: Box::new(params_of),
            deadline,
            passes: VecDeque::new(),
            rest: inputs.into(),
            max_open: pace.max_open,
            is_begun: pace.is_begun,
            n_cached_tokens: 0,
        };
        passes.submit()?;
        Ok(passes)
    }

    /// Submits what the queue has room for, and one in any case once the request is begun: other requests may have taken all the room
    /// that its own inputs left.
    fn submit(&mut self) -> Result<(), EngineError> {
        while self.passes.len() < self.max_open
            && let Some(PassInput { tokens, media }) = self.rest.front()
        {
            let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
            let params = ForwardParams {
                deadline: self.deadline.map(left),
                media: Arc::clone(media),
                ..(self.params_of)(tokens)
            };
            let pass = match self.engine.submit_forward(tokens.clone(), params.clone()) {
                Err(EngineError::QueueFull { .. } | EngineError::QueueTokensFull { .. })
                    if !self.passes.is_empty() =>
                {
                    break;
                }
                Err(EngineError::QueueFull { .. } | EngineError::QueueTokensFull { .. }) if self.is_begun => {
                    self.engine.submit_further_forward(tokens.clone(), params)
                }
                asked => asked,
            };
            self.passes.push_back(pass?);
            self.is_begun = true;
            self.rest.pop_front();
        }
        Ok(())
    }

    /// Returns how many tokens of the inputs that have ended came from the prefix cache.
    pub(crate) fn n_cached_tokens(&self) -> usize {
        self.n_cached_tokens
    }

    /// Gives the rows of the next input to `on_row`, one by one, and says when it is done; `None` after the last.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        mut on_row: impl FnMut(&[f32]),
    ) -> Poll<Option<Result<(), Error>>> {
        if let Err(error) = self.submit() {
            self.passes.clear();
            self.rest.clear();
            return Poll::Ready(Some(Err(error.into())));
        }
        let Some(pass) = self.passes.front_mut() else {
            return Poll::Ready(None);
        };
        loop {
            match pass.poll_event(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Event::Rows(rows))) => {
                    rows.values.chunks_exact(rows.width).for_each(&mut on_row);
                }
                Poll::Ready(Some(Event::Failed { error, .. })) => {
                    self.passes.clear();
                    self.rest.clear();
                    return Poll::Ready(Some(Err(error.into())));
                }
                Poll::Ready(Some(Event::Finished(finished))) => {
                    self.n_cached_tokens += finished.usage.cached_tokens;
                }
                Poll::Ready(Some(Event::Prefill(_) | Event::Token(_))) => {}
                Poll::Ready(None) => {
                    self.passes.pop_front();
                    return Poll::Ready(Some(Ok(())));
                }
            }
        }
    }
}
