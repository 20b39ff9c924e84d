//! The tokens at which DRY ends its search for a repetition.
//!
//! The sampler knows ids, not texts. Invariant: the default costs one pass over the vocabulary per model, not
//! one per request.

use tokenmill_text::Tokenizer;

use crate::words::ModelWords;

/// Texts at which DRY stops looking for a repetition, by llama.cpp's default.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

impl ModelWords {
    /// The tokens whose text holds one of `texts`, for [`Dry::breakers`](tokenmill_backend::Dry::breakers).
    pub fn dry_breakers(&self, texts: &[impl AsRef<str>]) -> Vec<u32> {
        let texts: Vec<&[u8]> = texts.iter().map(|text| text.as_ref().as_bytes()).collect();
        let default = DRY_BREAKERS.map(str::as_bytes);
        if texts == default {
            return (self.default_breakers)
                .get_or_init(|| holders(self.tokenizer(), &default))
                .clone();
        }
        holders(self.tokenizer(), &texts)
    }
}

/// The tokens whose bytes hold one of `texts`. Most bytes begin none of them, and are passed at one look.
fn holders(tokenizer: &Tokenizer, texts: &[&[u8]]) -> Vec<u32> {
    let mut begins = [false; 256];
    for first in texts.iter().filter_map(|text| text.first()) {
        begins[usize::from(*first)] = true;
    }
    let holds = |bytes: &[u8]| {
        (0..bytes.len()).any(|at| {
            begins[usize::from(bytes[at])] && texts.iter().any(|text| bytes[at..].starts_with(text))
        })
    };
    (0..tokenizer.n_vocab() as u32)
        .filter(|&id| tokenizer.token_bytes(id).is_some_and(holds))
        .collect()
}

#[cfg(test)]
mod tests {
    use tokenmill_text::Tokenizer;

    use super::*;
    use crate::model_source::ModelSource;

    #[test]
    fn tokens_that_hold_a_text_break_and_others_do_not() {
        let tokenizer: Tokenizer = ModelSource::find("demo")
            .and_then(|source| source.tokenizer(source.open_gguf()?.as_ref()))
            .expect("the demo has a tokenizer");
        let words = ModelWords::new(tokenizer);
        let naive = |texts: &[&str]| -> Vec<u32> {
            let holds = |bytes: &[u8], text: &str| {
                (bytes.windows(text.len())).any(|window| window == text.as_bytes())
            };
            (0..words.tokenizer().n_vocab() as u32)
                .filter(|&id| {
                    let bytes = words.tokenizer().token_bytes(id).unwrap_or_default();
                    texts.iter().any(|text| holds(bytes, text))
                })
                .collect()
        };
        for texts in [
            &DRY_BREAKERS[..],
            &[" t"],
            &["he", "in"],
            &["no such token holds this"],
        ] {
            // Twice, since the default is kept.
            for _ in 0..2 {
                assert_eq!(words.dry_breakers(texts), naive(texts), "{texts:?}");
            }
        }
        assert!(!words.dry_breakers(&DRY_BREAKERS).is_empty());
        assert!(words.dry_breakers(&[""; 0]).is_empty());
    }
}
