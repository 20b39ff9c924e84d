//! Log-probabilities of a prompt's own tokens, for completions with `echo` and `logprobs`.

use std::time::Duration;

use tokenmill::{TextParams, stream::ScoredToken};
use tokenmill_backend::TokenLogprob;
use tokenmill_sched::{Event, ForwardParams, ForwardRows};

use crate::{ApiError, ServedModel};

/// Scores every token of `prompt` given those before it; the first has no score. `n_top` alternatives are reported. The
/// pass has the priority, the time limits, the adapter and the cache salt of `params`.
///
/// # Errors
/// Fails if the engine refuses the prompt or the pass fails.
pub(crate) async fn score_prompt(
    model: &ServedModel,
    prompt: &[u32],
    n_top: u32,
    params: &TextParams,
) -> Result<Vec<ScoredToken>, ApiError> {
    let mut scored: Vec<ScoredToken> = prompt
        .iter()
        .map(|&id| ScoredToken {
            id,
            logprob: None,
            top: Vec::new(),
            time: Duration::ZERO,
        })
        .collect();
    let adapter = (params.adapter.as_deref())
        .map(|name| model.model().adapter(name))
        .transpose()?;
    let adapter = adapter.map(|adapter| adapter.id);
    let params = ForwardParams {
        priority: params.priority,
        queue_timeout: params.queue_timeout,
        deadline: params.deadline,
        cache_salt: params.engine.cache_salt,
        adapter,
        ..ForwardParams::new(ForwardRows::Logits, 0)
    };
    let mut rows = model.engine().submit_forward(prompt.to_vec(), params)?;
    while let Some(event) = rows.next_event().await {
        match event {
            Event::Rows(chunk) => {
                for (offset, logits) in chunk.values.chunks_exact(chunk.width).enumerate() {
                    // A row predicts the token after its own.
                    if let Some(token) = scored.get_mut(chunk.first_position + offset + 1) {
                        (token.logprob, token.top) = score(logits, token.id, n_top as usize);
                    }
                }
            }
            Event::Failed { error, .. } => return Err(error.into()),
            Event::Prefill(_) | Event::Token(_) | Event::Finished(_) => {}
        }
    }
    Ok(scored)
}

/// The log-probability of `id` and the `n_top` likeliest tokens, lowest id first among equals.
fn score(logits: &[f32], id: u32, n_top: usize) -> (Option<f32>, Vec<TokenLogprob>) {
    let maximum = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - maximum).exp()).sum();
    let log_sum = maximum + sum.ln() as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if n_top < order.len() {
        order.select_nth_unstable_by(n_top, likelier);
        order.truncate(n_top);
    }
    order.sort_unstable_by(likelier);
    let top = order.into_iter().map(|id| TokenLogprob {
        id,
        logprob: logits[id as usize] - log_sum,
    });
    (Some(logits[id as usize] - log_sum), top.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_log_softmax() {
        let (logprob, top) = score(&[0.0, 1.0, 1.0, -1.0], 3, 2);
        let log_sum = (1.0_f32 + 2.0 * 1.0_f32.exp() + (-1.0_f32).exp()).ln();
        assert!((logprob.expect("a score") - (-1.0 - log_sum)).abs() < 1e-6);
        assert_eq!(top.iter().map(|top| top.id).collect::<Vec<_>>(), [1, 2]);
    }
}
