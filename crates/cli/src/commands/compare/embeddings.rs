//! Compares two files of an embedding model: the distance between their vectors of the same texts.
//!
//! Such models make no predictions that could diverge. Invariant: each text has the same tokens for both.

use std::time::Instant;

use serde_json::json;
use tokenmill::Model;

use super::Side;
use crate::{
    failure::Failure,
    numbers::{Limit, counted, rounded},
    output, progress,
};

/// The number of texts computed at once.
const TEXTS_AT_ONCE: usize = 32;

/// The differences between the vectors of all texts.
#[derive(Debug, Default)]
struct Distances {
    /// The cosine of the angle between the two vectors of each text.
    cosines: Vec<f64>,
    /// The line of each text.
    lines: Vec<usize>,
    /// The largest difference of two numbers in the same place, of vectors of length 1.
    largest: f64,
    largest_line: usize,
}

/// Compares two models on the lines of a text, each a text of its own, of which at most `chunks` are taken.
///
/// # Errors
/// Fails if a text cannot be computed, or if the two are not files of one model.
pub(super) fn compare(
    [base, other]: [&mut Side; 2],
    text: &str,
    chunks: Limit,
    is_json: bool,
) -> Result<(), Failure> {
    let n_ctx = base.model.n_ctx().min(other.model.n_ctx());
    let texts: Vec<(usize, &str)> = ((1..).zip(text.lines()))
        .filter(|(_, line)| !line.trim().is_empty())
        .take(chunks.bound().unwrap_or(usize::MAX))
        .collect();
    if texts.is_empty() {
        return Err(Failure::input("the text has no lines").hint("each line is a text that gets a vector"));
    }
    let mut distances = Distances::default();
    let bar = progress::steps("comparing", texts.len() as u64);
    for some in texts.chunks(TEXTS_AT_ONCE) {
        let tokens_of = |model: &Model| -> Vec<Vec<u32>> {
            some.iter().map(|(_, line)| tokens(model, line, n_ctx)).collect()
        };
        let inputs = tokens_of(&base.model);
        if inputs != tokens_of(&other.model) {
            return Err(Failure::input("the two have different tokens for the text")
                .hint("compare files of one model"));
        }
        let of_base = base.vectors(inputs.clone())?;
        let of_other = other.vectors(inputs)?;
        for ((&(line, _), base), other) in some.iter().zip(&of_base).zip(&of_other) {
            distances.push(line, base, other)?;
        }
        bar.inc(some.len() as u64);
    }
    bar.finish_and_clear();
    let sides = [&*base, &*other];
    if is_json {
        return output::print_json(&json!({
            "n_ctx": n_ctx,
            "n_texts": texts.len(),
            "models": sides.map(|side| json!({
                "model": side.name,
                "n_bytes": side.n_bytes,
                "tokens_per_second": side.speed(),
            })),
            "cosine": distances.cosine_json(),
            "largest_difference": { "value": distances.largest, "line": distances.largest_line },
        }));
    }
    for side in sides {
        output::print_sentence(&format!(
            "{}: {}, {:.1} tokens/s",
            side.name,
            side.size(),
            side.speed()
        ))?;
    }
    output::print_sentence(&distances.to_text())
}

/// The tokens of a text with those that begin and end it, cut to the context.
fn tokens(model: &Model, text: &str, n_ctx: usize) -> Vec<u32> {
    let mut ids = model.words().encode_text(text, true);
    if ids.len() > n_ctx {
        let last = ids.last().copied();
        ids.truncate(n_ctx);
        if let (Some(end), Some(last), true) = (ids.last_mut(), last, model.words().tokenizer().adds_eos()) {
            *end = last;
        }
    }
    ids
}

impl Side {
    /// The vectors of some texts, of length 1.
    fn vectors(&mut self, inputs: Vec<Vec<u32>>) -> Result<Vec<Vec<f32>>, Failure> {
        let start = Instant::now();
        self.n_tokens += inputs.iter().map(Vec::len).sum::<usize>();
        let vectors: Result<Vec<_>, _> = self.model.embed_tokens(inputs, None, 0)?.collect();
        self.seconds += start.elapsed().as_secs_f64();
        Ok(vectors?)
    }
}

impl Distances {
    fn push(&mut self, line: usize, base: &[f32], other: &[f32]) -> Result<(), Failure> {
        if base.len() != other.len() {
            let message = format!(
                "the two make vectors of {} and of {} numbers",
                base.len(),
                other.len()
            );
            return Err(Failure::input(message).hint("compare files of one model"));
        }
        let product = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        let lengths = (product(base, base) * product(other, other)).sqrt();
        let cosine = product(base, other) / lengths;
        if !cosine.is_finite() {
            return Err(Failure::work(format!(
                "line {line} has a vector without a direction: its numbers are all 0, or not finite"
            ))
            .hint("the file's weights may be damaged; fetch the file again"));
        }
        for (&a, &b) in base.iter().zip(other) {
            let difference = f64::from((a - b).abs());
            if difference > self.largest {
                (self.largest, self.largest_line) = (difference, line);
            }
        }
        if self.lines.is_empty() {
            self.largest_line = line;
        }
        // Rounding may give a little more than the whole.
        self.cosines.push(cosine.clamp(-1.0, 1.0));
        self.lines.push(line);
        Ok(())
    }

    fn mean(&self) -> f64 {
        self.cosines.iter().sum::<f64>() / self.cosines.len() as f64
    }

    /// The cosine below which a share of the texts lies.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.cosines.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
        sorted[at]
    }

    /// The least cosine, and its line.
    fn least(&self) -> (f64, usize) {
        let texts = self.cosines.iter().copied().zip(self.lines.iter().copied());
        texts.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there is a text")
    }

    fn cosine_json(&self) -> serde_json::Value {
        let (least, line) = self.least();
        json!({
            "mean": self.mean(), "median": self.quantile(0.5), "p10": self.quantile(0.1),
            "p1": self.quantile(0.01), "least": least, "least_line": line,
        })
    }

    /// Two lines.
    fn to_text(&self) -> String {
        let (least, line) = self.least();
        let [mean, median, p10, p1, least] = [
            self.mean(),
            self.quantile(0.5),
            self.quantile(0.1),
            self.quantile(0.01),
            least,
        ]
        .map(|value| rounded(value, 6));
        format!(
            "cosine of the vectors of {}: mean {mean:.6}, median {median:.6}, 10% {p10:.6}, 1% {p1:.6}, least {least:.6} (line {line})\n\
             largest difference of two numbers {:.6} (line {})",
            counted(self.lines.len(), "text"),
            self.largest,
            self.largest_line
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_formulas() {
        let mut distances = Distances::default();
        distances.push(1, &[1.0, 0.0], &[1.0, 0.0]).unwrap();
        distances.push(3, &[1.0, 0.0], &[0.6, 0.8]).unwrap();
        assert!((distances.mean() - 0.8).abs() < 1e-6);
        let (least, line) = distances.least();
        assert!((least - 0.6).abs() < 1e-6 && line == 3);
        assert!((distances.largest - 0.8).abs() < 1e-6 && distances.largest_line == 3);
        assert_eq!(distances.quantile(1.0), 1.0);
        assert!(distances.push(4, &[1.0], &[1.0, 0.0]).is_err());
        assert!(distances.push(4, &[0.0, 0.0], &[1.0, 0.0]).is_err());
    }
}
