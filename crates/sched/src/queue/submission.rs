//! [`Submission`]: a request on its way from its caller to the engine.
//!
//! It is checked on the caller's thread, before anything reaches the engine. Invariant: the contents of a
//! [`Submission`] can run, given the whole pool.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokenmill_backend::{AdapterId, ExecutorLimits, PAGE_TOKENS, SamplingParams};

use crate::{
    arena::SeqId,
    error::EngineError,
    masks::constraint::ConstraintSource,
    media::{Media, check_media},
    pages::group::pages_needed,
    params::{
        ForwardParams, ForwardRows, GenerateParams, MAX_SAMPLES, context_shift::ContextShift,
        sampling_key::SamplingKey,
    },
    plan::sequence::{SeqSpec, Work},
    queue::event::{Event, RequestId},
    sync::channel::Sender,
};

#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) request: RequestId,
    pub(crate) tokens: Vec<u32>,
    pub(crate) job: Job,
    /// The sampling key of each sample's tokens.
    pub(crate) sampling_key: Option<SamplingKey>,
    pub(crate) events: Sender<Event>,
    /// Microseconds since the engine began.
    pub(crate) submitted_us: u64,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a job is moved a few times for each request"
)]
pub(crate) enum Job {
    Generate {
        params: GenerateParams,
        /// Maximum number of tokens of prompt and output together.
        max_len: usize,
        /// How samples continue when the context is full, and the size of the context.
        context_shift: Option<(ContextShift, usize)>,
    },
    Forward(ForwardParams),
}

impl Job {
    pub(crate) fn sampling_key(&self) -> Option<SamplingKey> {
        match self {
            Self::Generate { params, .. } => SamplingKey::of(params),
            Self::Forward(_) => None,
        }
    }

    pub(crate) fn n_samples(&self) -> u32 {
        match self {
            Self::Generate { params, .. } => params.n_samples,
            Self::Forward(_) => 1,
        }
    }

    /// Returns a sample's sampling parameters; `None` for a forward pass.
    pub(crate) fn sampling(&self, sample: u32) -> Option<Arc<SamplingParams>> {
        let Self::Generate { params, .. } = self else {
            return None;
        };
        let mut sampling = params.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(u64::from(sample));
        Some(Arc::new(sampling))
    }

    /// Returns the constraint of its samples.
    pub(crate) fn constraint(&self) -> Option<&ConstraintSource> {
        match self {
            Self::Generate { params, .. } => params.constraint.as_ref(),
            Self::Forward(_) => None,
        }
    }

    pub(crate) fn adapter(&self) -> Option<AdapterId> {
        match self {
            Self::Generate { params, .. } => params.adapter,
            Self::Forward(params) => params.adapter,
        }
    }

    /// Returns its non-token inputs.
    pub(crate) fn media(&self) -> Arc<[Media]> {
        match self {
            Self::Generate { params, .. } => Arc::clone(&params.media),
            Self::Forward(params) => Arc::clone(&params.media),
        }
    }

    /// Returns the predetermined output of its samples, if given.
    pub(crate) fn follows(&self) -> Option<&Arc<[u32]>> {
        match self {
            Self::Generate { params, .. } => params.follows.as_ref(),
            Self::Forward(_) => None,
        }
    }

    pub(crate) fn reports_prefill(&self) -> bool {
        matches!(self, Self::Generate { params, .. } if params.reports_prefill)
    }

    pub(crate) fn traces_tokens(&self) -> bool {
        matches!(self, Self::Generate { params, .. } if params.traces_tokens)
    }
}

/// Sampling parameters of a sample's first tokens, which exclude stop tokens.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    /// Number of inputs after which the opening is over.
    pub(crate) end: u32,
    pub(crate) sampling: Arc<SamplingParams>,
}

impl Opening {
    /// Adjusts the end after `n_dropped` earlier tokens were dropped.
    pub(crate) fn take_off(&mut self, n_dropped: usize) {
        self.end = self.end.saturating_sub(n_dropped as u32);
    }
}

impl Submission {
    /// Returns the sampling parameters of a sample while it must not end.
    pub(crate) fn opening(&self, sample: u32) -> Option<Opening> {
        let Job::Generate { params, .. } = &self.job else {
            return None;
        };
        if params.min_tokens == 0 {
            return None;
        }
        let mut sampling = self.job.sampling(sample)?;
        let forbidden = params.stop_tokens.iter().map(|&id| (id, f32::NEG_INFINITY));
        Arc::make_mut(&mut sampling).logit_bias.extend(forbidden);
        Some(Opening {
            end: u32::try_from(self.tokens.len().saturating_add(params.min_tokens)).unwrap_or(u32::MAX),
            sampling,
        })
    }

    /// Returns the specification for the scheduler.
    pub(crate) fn spec(&self, fork_of: Option<SeqId>) -> SeqSpec {
        let at = |after: Duration| self.submitted_us.saturating_add(after.as_micros() as u64);
        let tokens = self.tokens.clone();
        match &self.job {
            Job::Generate {
                params,
                max_len,
                context_shift,
            } => SeqSpec {
                tokens,
                work: Work::Generate {
                    max_len: *max_len,
                    stop_tokens: params.stop_tokens.as_slice().into(),
                },
                priority: params.priority,
                uses_prefix_cache: params.uses_prefix_cache,
                salt: params.cache_salt,
                adapter: params.adapter,
                media: params.media.iter().map(|media| media.span).collect(),
                queue_deadline_us: params.queue_timeout.map(at),
                deadline_us: params.deadline.map(at),
                is_constrained: params.constraint.is_some(),
                sampling_key: self.sampling_key.clone(),
                context_shift: *context_shift,
                fork_of,
            },
            Job::Forward(params) => SeqSpec {
                tokens,
                work: match params.rows {
                    ForwardRows::Logits => Work::Logits { from: params.from },
                    ForwardRows::Hidden => Work::Hidden { from: params.from },
                },
                priority: params.priority,
                uses_prefix_cache: params.uses_prefix_cache,
                salt: params.cache_salt,
                adapter: params.adapter,
                media: params.media.iter().map(|media| media.span).collect(),
                queue_deadline_us: params.queue_timeout.map(at),
                deadline_us: params.deadline.map(at),
                is_constrained: false,
                sampling_key: None,
                context_shift: None,
                fork_of,
            },
        }
    }
}

/// An engine's limits for non-token inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputRows {
    /// Their width; `None` if it accepts none.
    pub(crate) width: Option<usize>,
    /// Maximum inputs of a step.
    pub(crate) max_step_tokens: usize,
}

/// The maximum length of a request's samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Maximum number of tokens of prompt and output together; the prompt's own length if nothing is to be
    /// generated.
    pub(crate) max_len: usize,
    /// How they continue when the context is full, and the size of the context.
    pub(crate) context_shift: Option<(ContextShift, usize)>,
}

/// Checks a request to generate.
pub(crate) fn check_generate(
    limits: &ExecutorLimits,
    rows: InputRows,
    tokens: &[u32],
    params: &GenerateParams,
    context_shift: Option<ContextShift>,
) -> Result<Reach, EngineError> {
    check_tokens(limits, tokens)?;
    if limits.is_encoder {
        return Err(EngineError::PredictsNoTokens);
    }
    check_media(
        limits,
        rows.width,
        rows.max_step_tokens,
        tokens.len(),
        &params.media,
    )?;
    params.sampling.validate(limits.n_vocab)?;
    check_choice(limits, params)?;
    if let Some(follows) = &params.follows
        && (params.constraint.is_some() || follows.iter().any(|&id| id as usize >= limits.n_vocab))
    {
        return Err(EngineError::CannotFollow);
    }
    if !(1..=MAX_SAMPLES).contains(&params.n_samples) {
        return Err(EngineError::SampleCount {
            found: params.n_samples,
            maximum: MAX_SAMPLES,
        });
    }
    // The last sampled token is never an input, so it needs no page.
    let pool_len = match limits.kv_window {
        None => limits.n_pages * PAGE_TOKENS + 1,
        Some(_) => usize::MAX,
    };
    let wanted = (params.max_tokens).map_or(usize::MAX, |n| tokens.len().saturating_add(n));
    let context_shift = context_shift
        .map(|shift| (shift, limits.n_ctx.min(pool_len)))
        .filter(|&(shift, n_ctx)| wanted > n_ctx && shift.rule(tokens.len(), n_ctx).is_some())
        // A cut image would be useless.
        .filter(|_| params.media.is_empty());
    let max_len = match (context_shift, params.max_tokens) {
        (Some(_), _) => wanted,
        (None, Some(_)) => wanted.min(limits.n_ctx),
        (None, None) => limits.n_ctx.min(pool_len).max(tokens.len()),
    };
    let longest = context_shift.map_or(max_len, |(_, n_ctx)| n_ctx);
    check_pool(limits, tokens.len().max(longest - 1))?;
    Ok(Reach {
        max_len,
        context_shift,
    })
}

/// Refuses parameters that leave no token to choose.
fn check_choice(limits: &ExecutorLimits, params: &GenerateParams) -> Result<(), EngineError> {
    let biased = params.sampling.logit_bias.iter();
    let forbidden = biased
        .filter(|(_, bias)| *bias == f32::NEG_INFINITY)
        .map(|&(id, _)| id);
    let stops = if params.min_tokens > 0 {
        &params.stop_tokens[..]
    } else {
        &[]
    };
    let n_forbidden = if params.sampling.logit_bias.len() + stops.len() < limits.n_vocab {
        0
    } else {
        let distinct: BTreeSet<u32> = forbidden.chain(stops.iter().copied()).collect();
        distinct.range(..limits.n_vocab as u32).count()
    };
    if n_forbidden == limits.n_vocab {
        return Err(EngineError::NothingAllowed);
    }
    Ok(())
}

/// Checks a forward pass.
pub(crate) fn check_forward(
    limits: &ExecutorLimits,
    rows: InputRows,
    tokens: &[u32],
    params: &ForwardParams,
) -> Result<(), EngineError> {
    check_tokens(limits, tokens)?;
    check_media(
        limits,
        rows.width,
        rows.max_step_tokens,
        tokens.len(),
        &params.media,
    )?;
    if limits.is_encoder && params.rows == ForwardRows::Logits {
        return Err(EngineError::PredictsNoTokens);
    }
    // The only row of an encoder that pools is computed from all its tokens, and belongs to the last position.
    let is_one_row = params.from + 1 == tokens.len();
    if params.from >= tokens.len() || limits.pools_whole_sequences() && !is_one_row {
        return Err(EngineError::RowsOutOfRange {
            from: params.from,
            n_tokens: tokens.len(),
        });
    }
    check_pool(limits, tokens.len())
}

fn check_tokens(limits: &ExecutorLimits, tokens: &[u32]) -> Result<(), EngineError> {
    if tokens.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    if tokens.len() > limits.n_ctx {
        return Err(EngineError::ContextLimitExceeded {
            provided: tokens.len(),
            maximum: limits.n_ctx,
        });
    }
    match tokens.iter().position(|&id| id as usize >= limits.n_vocab) {
        None => Ok(()),
        Some(index) => Err(EngineError::UnknownToken {
            index,
            id: tokens[index],
            n_vocab: limits.n_vocab,
        }),
    }
}

fn check_pool(limits: &ExecutorLimits, n_tokens: usize) -> Result<(), EngineError> {
    for (_, group) in limits.groups() {
        let needed_pages = pages_needed(&group, n_tokens);
        if needed_pages > group.n_pages {
            return Err(EngineError::PoolTooSmall {
                needed_pages,
                n_pages: group.n_pages,
            });
        }
    }
    Ok(())
}
