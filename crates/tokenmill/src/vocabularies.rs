//! [`difference_of`]: compares two vocabularies, as far as drafts need it.
//!
//! Draft models and MTP layers in separate files are compared alike. Invariant: the first token that differs
//! is named.

use tokenmill_text::Tokenizer;

/// Tokens that one of two vocabularies may have after all of the other. Families fill theirs up to round numbers,
/// which differ with the size of the model. Source: llama.cpp, `common/speculative.cpp`, the largest difference that it takes.
const MAX_MORE_TOKENS: usize = 128;

/// Describes the difference between a model's vocabulary and its draft model's in words; `None` if they
/// agree.
pub(crate) fn difference_of(model: &Tokenizer, draft: &Tokenizer) -> Option<String> {
    let (n_model, n_draft) = (model.n_vocab(), draft.n_vocab());
    let text = |tokenizer: &Tokenizer, id: u32| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        format!("`{}`", String::from_utf8_lossy(bytes).escape_debug())
    };
    if n_model.abs_diff(n_draft) > MAX_MORE_TOKENS {
        return Some(format!("it has {n_draft} tokens, and the model {n_model}"));
    }
    if let Some(id) = (0..n_model.min(n_draft) as u32).find(|&id| {
        (model.token_bytes(id), model.token_kind(id)) != (draft.token_bytes(id), draft.token_kind(id))
    }) {
        let (of_draft, of_model) = (text(draft, id), text(model, id));
        return Some(if of_draft == of_model {
            format!("its token {id}, {of_draft}, is of another kind than the model's")
        } else {
            format!("its token {id} is {of_draft}, and the model's {of_model}")
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_differs_by_its_first_other_token() {
        let tokenizer = |json: &str| Tokenizer::from_tokenizer_json(json.as_bytes()).unwrap();
        let of = |tokens: &[&str]| {
            let vocab: serde_json::Map<String, serde_json::Value> = (tokens.iter().zip(0..))
                .map(|(token, id)| ((*token).to_owned(), id.into()))
                .collect();
            tokenizer(
                &serde_json::json!({
                    "version": "1.0", "added_tokens": [], "normalizer": null,
                    "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
                    "decoder": { "type": "ByteLevel" },
                    "model": { "type": "BPE", "vocab": vocab, "merges": [] },
                })
                .to_string(),
            )
        };
        let model = of(&["a", "b", "c"]);
        assert_eq!(difference_of(&model, &of(&["a", "b", "c"])), None);
        assert_eq!(difference_of(&model, &of(&["a", "b", "c", "d"])), None);
        assert_eq!(
            difference_of(&model, &of(&["a", "x", "c"])).as_deref(),
            Some("its token 1 is `x`, and the model's `b`")
        );
        let many: Vec<String> = (0..200).map(|n| format!("t{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(
            difference_of(&model, &of(&many)).as_deref(),
            Some("it has 200 tokens, and the model 3")
        );
    }
}
