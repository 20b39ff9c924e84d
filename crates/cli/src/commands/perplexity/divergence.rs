//! [`Divergence`]: how far the probabilities of a model are from those of another, position by position.
//!
//! The perplexity needs only one model. Source: llama.cpp, `tools/perplexity`, for the figures.

use serde_json::json;

use crate::numbers::rounded;

/// The figures of all positions so far.
#[derive(Debug, Default)]
pub(crate) struct Divergence {
    /// The Kullback-Leibler divergence of the model from the base at each position, in nats.
    kl: Vec<f32>,
    /// The amount by which the model's probability of the right token exceeds the base's, at each position.
    gains: Vec<f32>,
    /// Whether both rank the same token first, at each position.
    same_top: Vec<bool>,
    /// The sum of the base's negative log-likelihoods.
    base_nll: f64,
}

/// The smallest stored log-probability: the storage rounds smaller probabilities to none.
const MIN_LOG_PROB: f32 = -16.0;

impl Divergence {
    /// Adds a position: the base's log-probabilities, the model's logits, and the token that follows.
    pub(crate) fn push(&mut self, base: &[f32], logits: &[f32], next: u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
        let log_sum = f64::from(max) + sum.ln();
        let (mut kl, mut top_base, mut top_own) = (0.0, 0, 0);
        for (id, (&log_base, &logit)) in base.iter().zip(logits).enumerate() {
            if log_base > MIN_LOG_PROB {
                let log_own = f64::from(logit) - log_sum;
                kl += f64::from(log_base.exp()) * (f64::from(log_base) - log_own);
            }
            if log_base > base[top_base] {
                top_base = id;
            }
            if logit > logits[top_own] {
                top_own = id;
            }
        }
        let next = next as usize;
        let own = (f64::from(logits[next]) - log_sum).exp();
        self.kl.push(kl as f32);
        self.gains.push((own - f64::from(base[next]).exp()) as f32);
        self.same_top.push(top_base == top_own);
        self.base_nll -= f64::from(base[next]);
    }

    /// The figures of at most `n_parts` parts of all positions, in their order; each but the last has equally many.
    pub(crate) fn along(&self, n_parts: usize) -> Vec<Part> {
        let n_each = self.kl.len().div_ceil(n_parts.max(1)).max(1);
        let parts = self.kl.chunks(n_each).zip(self.same_top.chunks(n_each));
        parts
            .enumerate()
            .map(|(idx, (kl, same))| Part {
                start: idx * n_each,
                end: idx * n_each + kl.len(),
                mean_kl: kl.iter().map(|&kl| f64::from(kl)).sum::<f64>() / kl.len() as f64,
                same_top: n_true(same) as f64 / same.len() as f64,
            })
            .collect()
    }

    /// The perplexity of the base.
    pub(crate) fn base_perplexity(&self) -> f64 {
        (self.base_nll / self.kl.len() as f64).exp()
    }

    /// The figures.
    pub(crate) fn figures(&self) -> Figures {
        let n = self.kl.len().max(1) as f64;
        let mut sorted = self.kl.clone();
        sorted.sort_by(f32::total_cmp);
        let quantile = |share: f64| {
            let at = (share * (sorted.len().saturating_sub(1)) as f64).round() as usize;
            f64::from(sorted.get(at).copied().unwrap_or(f32::NAN))
        };
        let mean = self.kl.iter().map(|&kl| f64::from(kl)).sum::<f64>() / n;
        let variance = self
            .kl
            .iter()
            .map(|&kl| (f64::from(kl) - mean).powi(2))
            .sum::<f64>()
            / n;
        let squares: f64 = self.gains.iter().map(|&gain| f64::from(gain).powi(2)).sum();
        Figures {
            mean,
            error: (variance / (n - 1.0).max(1.0)).sqrt(),
            median: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: quantile(1.0),
            same_top: n_true(&self.same_top) as f64 / n,
            mean_gain: self.gains.iter().map(|&gain| f64::from(gain)).sum::<f64>() / n,
            rms_gain: (squares / n).sqrt(),
        }
    }
}

fn n_true(claims: &[bool]) -> usize {
    claims.iter().filter(|&&claim| claim).count()
}

/// The figures of the positions `start..end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// In nats.
    pub(crate) mean_kl: f64,
    /// The share of positions at which both rank the same token first.
    pub(crate) same_top: f64,
}

/// The figures of all positions together. Divergences are in nats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) mean: f64,
    /// The standard error of the mean.
    pub(crate) error: f64,
    pub(crate) median: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    /// The share of positions at which both hold the same token for the likeliest.
    pub(crate) same_top: f64,
    /// The mean change of the right token's probability, and the root of its mean square.
    pub(crate) mean_gain: f64,
    pub(crate) rms_gain: f64,
}

impl Figures {
    /// Three lines.
    pub(crate) fn to_text(self) -> String {
        let Self {
            mean,
            error,
            median,
            p90,
            p99,
            max,
            same_top,
            mean_gain,
            rms_gain,
        } = self;
        let [mean, error, median, p90, p99, max] =
            [mean, error, median, p90, p99, max].map(|value| rounded(value, 6));
        format!(
            "KL divergence mean {mean:.6} ± {error:.6}, median {median:.6}, 90% {p90:.6}, 99% {p99:.6}, greatest {max:.6}\n\
             same likeliest token at {:.3}% of the positions\n\
             probability of the right token {:+.3}% on average, {:.3}% root mean square",
            100.0 * same_top,
            rounded(100.0 * mean_gain, 3),
            100.0 * rms_gain,
        )
    }

    /// Adds them to a report.
    pub(crate) fn add_to(self, report: &mut serde_json::Value) {
        report["kl"] = json!({
            "mean": self.mean, "error": self.error, "median": self.median,
            "p90": self.p90, "p99": self.p99, "max": self.max,
        });
        report["same_top"] = json!(self.same_top);
        report["probability_gain"] = json!({ "mean": self.mean_gain, "rms": self.rms_gain });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_probabilities_do_not_diverge() {
        let mut divergence = Divergence::default();
        let third = (1.0_f32 / 3.0).ln();
        divergence.push(&[third; 3], &[7.0; 3], 1);
        let figures = divergence.figures();
        assert!(figures.mean.abs() < 1e-6 && figures.mean_gain.abs() < 1e-6);
        assert_eq!(figures.same_top, 1.0);
        assert!((divergence.base_perplexity() - 3.0).abs() < 1e-5);
    }

    #[test]
    fn a_divergence_is_that_of_the_formula() {
        let mut divergence = Divergence::default();
        // 3/4 and 1/4 against 1/4 and 3/4.
        let base = [0.75_f32.ln(), 0.25_f32.ln()];
        divergence.push(&base, &[0.25_f32.ln(), 0.75_f32.ln()], 0);
        let figures = divergence.figures();
        assert!((figures.mean - 0.5 * 3.0_f64.ln()).abs() < 1e-6, "{figures:?}");
        assert_eq!(figures.same_top, 0.0);
        assert!((figures.mean_gain + 0.5).abs() < 1e-6);
    }
}
